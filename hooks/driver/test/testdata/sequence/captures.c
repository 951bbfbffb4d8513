/* SPDX-License-Identifier: Apache-2.0 */
/* Captures, and the graphs that come of them. */
#include "sequence.h"

static void forget_graph(struct thread *t, int g)
{
	bool left = false;

	note(t, t->cuStreamSynchronize_(t->stream[t->exec_home[g]]), "settle graph %d", g);
	note(t, cuGraphExecDestroy(t->exec[g]), "cuGraphExecDestroy %d", g);
	t->exec[g] = NULL;
	for (int i = 0; i < EXECS; i++)
		left = left || t->exec[i];
	for (int i = 0; !left && i < BUFFERS; i++)
		t->buffer[i].in_graph = false;
}

void end_capture(struct thread *t)
{
	int s = t->capturing, g = 0;
	CUgraph graph = NULL;
	CUresult r;

	t->capturing = -1;
	r = note(t, t->cuStreamEndCapture_(t->stream[s], &graph), "cuStreamEndCapture %d", s);
	while (g < EXECS && t->exec[g])
		g++;
	if (r != CUDA_SUCCESS || !graph)
		return;
	if (g < EXECS && note(t, cuGraphInstantiate(&t->exec[g], graph, 0), "cuGraphInstantiate %d", g) == CUDA_SUCCESS)
		t->exec_home[g] = s;
	else if (g < EXECS)
		t->exec[g] = NULL;
	note(t, cuGraphDestroy(graph), "cuGraphDestroy");
}

void captures(struct thread *t)
{
	static const CUstreamCaptureMode modes[] = { CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED,
						     CU_STREAM_CAPTURE_MODE_GLOBAL };
	int s = some_stream(t), g = (int)pick(t, EXECS);

	if (t->capturing >= 0) {
		if (chance(t, 60))
			end_capture(t);
		return;
	}
	if (t->exec[g]) {
		if (chance(t, 75))
			note(t, t->cuGraphLaunch_(t->exec[g], t->stream[t->exec_home[g]]), "cuGraphLaunch %d", g);
		else
			forget_graph(t, g);
		return;
	}
	/* What another thread may do then depends on when it does it. */
	if (note(t, t->cuStreamBeginCapture_v2_(t->stream[s], modes[pick(t, t->threads > 1 ? 2 : 3)]), "cuStreamBeginCapture %d", s) ==
	    CUDA_SUCCESS)
		t->capturing = s;
}
