/* SPDX-License-Identifier: Apache-2.0 */
/* share KERNELS: physical memory and a pool go to another process as file descriptors. */
#include "test.h"
#include <sys/socket.h>
#include <sys/wait.h>

static const CUmemAccessDesc both = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 }, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };

static void send_fd(int s, int fd)
{
	char room[CMSG_SPACE(sizeof(int))] = { 0 };
	struct msghdr m = { .msg_iov = &(struct iovec){ "x", 1 }, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	CHECK(sendmsg(s, &m, 0) == 1);
	close(fd);
}

static int receive_fd(int s)
{
	char room[CMSG_SPACE(sizeof(int))], x;
	struct msghdr m = { .msg_iov = &(struct iovec){ &x, 1 }, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room) };
	int fd;

	CHECK(recvmsg(s, &m, 0) == 1 && CMSG_FIRSTHDR(&m));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	return fd;
}

static size_t page_of(const CUmemAllocationProp *prop)
{
	size_t page;

	OK(cuMemGetAllocationGranularity(&page, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	return page;
}

static CUdeviceptr map(CUmemGenericAllocationHandle h, size_t page)
{
	CUdeviceptr va;

	OK(cuMemAddressReserve(&va, page, 0, 0, 0));
	OK(cuMemMap(va, page, 0, h, 0));
	OK(cuMemSetAccess(va, page, &both, 1));
	return va;
}

static void expect(CUdeviceptr p, unsigned value)
{
	unsigned got = 0;

	OK(cuMemcpyDtoH(&got, p, sizeof(got)));
	CHECK(got == value);
}

static void giver(int s)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = both.location,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	};
	CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = both.location,
		.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	};
	CUmemPoolPtrExportData data;
	CUmemGenericAllocationHandle h;
	CUmemoryPool pool, plain;
	CUdeviceptr p;
	size_t page = page_of(&prop);
	int fd;
	char c;

	OK(cuMemCreate(&h, page, &prop, 0));
	CUdeviceptr va = map(h, page);
	OK(cuMemsetD32(va, 41, page / 4));
	OK(cuCtxSynchronize());
	OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	send_fd(s, fd);
	CHECK(read(s, &c, 1) == 1);
	expect(va, 42); /* the other one has written */

	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemAllocFromPoolAsync(&p, 5000, pool, NULL));
	OK(cuMemsetD32(p, 51, 1250));
	OK(cuCtxSynchronize());
	OK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	send_fd(s, fd);
	OK(cuMemPoolExportPointer(&data, p));
	CHECK(write(s, &data, sizeof(data)) == sizeof(data));
	CHECK(read(s, &c, 1) == 1);
	expect(p + 4996, 52);

	/* What was not made for it can not be shared. */
	props.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
	OK(cuMemPoolCreate(&plain, &props));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportToShareableHandle(&fd, plain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
	OK(cuMemCreate(&h, page, &prop, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

static void taker(int s)
{
	CUmemGenericAllocationHandle h;
	CUmemPoolPtrExportData data;
	CUmemAllocationProp prop;
	CUmemoryPool pool;
	CUdeviceptr p;
	int fd = receive_fd(s), own[2];

	CHECK(pipe(own) == 0);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemImportFromShareableHandle(&h, (void *)(intptr_t)own[0], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	OK(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	OK(cuMemGetAllocationPropertiesFromHandle(&prop, h));
	CUdeviceptr va = map(h, page_of(&prop));
	expect(va, 41);
	OK(cuMemsetD32(va, 42, 1));
	OK(cuCtxSynchronize());
	CHECK(write(s, "x", 1) == 1);

	fd = receive_fd(s);
	OK(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	CHECK(read(s, &data, sizeof(data)) == sizeof(data));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocFromPoolAsync(&p, 4096, pool, NULL));
	OK(cuMemPoolImportPointer(&p, pool, &data));
	expect(p + 4996, 51);
	OK(cuMemsetD32(p + 4996, 52, 1));
	OK(cuCtxSynchronize());
	OK(cuMemFree(p));
	OK(cuMemPoolDestroy(pool));
	CHECK(write(s, "x", 1) == 1);
}

int main(int argc, char **argv)
{
	int s[2], status;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, s) == 0);
	/* Before either knows the driver: it does not go through a fork. */
	pid_t child = fork();
	CHECK(child >= 0);
	/* Each closes the other's end: if one fails, the other does not wait. */
	close(s[child == 0 ? 0 : 1]);
	begin(argc, argv, 0);
	if (child == 0) {
		taker(s[1]);
		return 0;
	}
	giver(s[0]);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return 0;
}
