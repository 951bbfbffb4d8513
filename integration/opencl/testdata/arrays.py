# SPDX-License-Identifier: Apache-2.0
"""Arrays, a kernel, an image and a reduction with PyOpenCL; prints what comes out."""
import numpy
import pyopencl as cl
import pyopencl.array
import pyopencl.reduction

context = cl.create_some_context(interactive=False)
queue = cl.CommandQueue(context)
add = cl.Program(context, """
kernel void add(global const float *a, global const float *b, global float *c)
{ int i = get_global_id(0); c[i] = a[i] + b[i]; }""").build().add
total = cl.reduction.ReductionKernel(context, numpy.int64, neutral="0", reduce_expr="a+b", map_expr="x[i]", arguments="__global int *x")

print("pyopencl", cl.VERSION_TEXT)
for n in (1000, 100000):
    a = cl.array.to_device(queue, numpy.arange(n, dtype=numpy.float32))
    b = cl.array.arange(queue, n, dtype=numpy.float32)
    c = cl.array.empty_like(a)
    for _ in range(10):
        add(queue, (n,), None, a.data, b.data, c.data).wait()
        a, c = c, a
    print(n, "sum of floats", float(numpy.sum(a.get(), dtype=numpy.float64)))
    print(n, "sum of integers", int(total(cl.array.arange(queue, n, dtype=numpy.int32)).get()))
picture = numpy.arange(64 * 64 * 4, dtype=numpy.uint8).reshape(64, 64, 4)
image = cl.image_from_array(context, picture, 4)
copy = numpy.empty_like(picture)
cl.enqueue_copy(queue, copy, image, origin=(0, 0), region=(64, 64))
print("image", bool((copy == picture).all()))
queue.finish()
