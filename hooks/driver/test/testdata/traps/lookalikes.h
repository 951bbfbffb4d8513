/* SPDX-License-Identifier: Apache-2.0 */
/* Names of other libraries that begin as the driver's do. */
#define LOOKALIKES(X) \
	X(cublasCreate_v2) X(cudnnCreate) X(cufftPlan1d) X(cusparseCreate) X(cutensorInit) X(cudaLaunchKernel) \
	X(cuda_launch) X(curl_easy_init) X(cupsGetDests) X(cu_init) X(nvml_init) X(nvmllike)
