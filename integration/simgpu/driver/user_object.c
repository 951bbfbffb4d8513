/* SPDX-License-Identifier: Apache-2.0 */
/* User objects: what graphs hold references to, so that it outlives their launches. */
#include <stdlib.h>

#include "graph.h"

struct user_object {
	struct handle h;
	uint64_t own, held; /* references of the program's own, and of graphs */
	CUhostFn destroy;
	void *data;
};

/* If the last reference has gone: the program's function runs where host functions run. */
static void object_put_locked(struct user_object *o)
{
	if (o->own || o->held)
		return;
	handle_remove_locked(o);
	host_call_locked(o->destroy, o->data);
	free(o);
}

static struct holding *holding_of(struct holding *list, const struct user_object *o)
{
	struct holding *p = list;

	while (p && p->object != o)
		p = p->next;
	return p;
}

static bool hold(struct holding **list, struct user_object *o, uint32_t n)
{
	struct holding *p = holding_of(*list, o);

	if (p) {
		p->n += n;
		return true;
	}
	p = malloc(sizeof(*p));
	if (!p)
		return false;
	*p = (struct holding){ o, n, *list };
	*list = p;
	return true;
}

bool holding_copy_locked(struct holding **to, const struct holding *from)
{
	for (const struct holding *p = from; p; p = p->next) {
		if (!hold(to, p->object, p->n))
			return false;
		p->object->held += p->n;
	}
	return true;
}

void holding_free_locked(struct holding **list)
{
	while (*list) {
		struct holding *p = *list;

		*list = p->next;
		p->object->held -= p->n;
		object_put_locked(p->object);
		free(p);
	}
}

static CUresult enter_object(CUuserObject h, unsigned n, struct user_object **o)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	*o = handle_get_locked(h, KIND_USER_OBJECT);
	return *o && n && n <= INT32_MAX ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_VALUE);
}

EXPORT CUresult cuUserObjectCreate(CUuserObject *out, void *ptr, CUhostFn destroy, unsigned int refs, unsigned int flags)
{
	CUresult r = enter();

	if (r)
		return r;
	if (!out || !destroy || !refs || refs > INT32_MAX || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
		return CUDA_ERROR_INVALID_VALUE;
	struct user_object *o = malloc(sizeof(*o));
	if (!o)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*o = (struct user_object){ .own = refs, .destroy = destroy, .data = ptr };
	lock();
	r = host_start_locked();
	if (r) {
		free(o);
		return leave(r);
	}
	handle_add_locked(o, KIND_USER_OBJECT);
	*out = (CUuserObject)o;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuUserObjectRetain(CUuserObject h, unsigned int n)
{
	struct user_object *o;
	CUresult r = enter_object(h, n, &o);

	if (r)
		return r;
	o->own += n;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuUserObjectRelease(CUuserObject h, unsigned int n)
{
	struct user_object *o;
	CUresult r = enter_object(h, n, &o);

	if (r)
		return r;
	if (n > o->own)
		return leave(CUDA_ERROR_INVALID_VALUE);
	o->own -= n;
	object_put_locked(o);
	return leave(CUDA_SUCCESS);
}

/* The graph takes new references, or the caller's own. */
EXPORT CUresult cuGraphRetainUserObject(CUgraph hg, CUuserObject h, unsigned int n, unsigned int flags)
{
	struct user_object *o;
	CUresult r = enter_object(h, n, &o);

	if (r)
		return r;
	struct graph *g = handle_get_locked(hg, KIND_GRAPH);
	bool move = flags == CU_GRAPH_USER_OBJECT_MOVE;
	if (!g || (flags && !move) || (move && n > o->own))
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (!hold(&g->holds, o, n))
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	o->held += n;
	if (move)
		o->own -= n;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphReleaseUserObject(CUgraph hg, CUuserObject h, unsigned int n)
{
	struct user_object *o;
	CUresult r = enter_object(h, n, &o);

	if (r)
		return r;
	struct graph *g = handle_get_locked(hg, KIND_GRAPH);
	struct holding *p = g ? holding_of(g->holds, o) : NULL;
	if (!p || n > p->n)
		return leave(CUDA_ERROR_INVALID_VALUE);
	p->n -= n;
	if (p->n == 0) {
		struct holding **link = &g->holds;

		while (*link != p)
			link = &(*link)->next;
		*link = p->next;
		free(p);
	}
	o->held -= n;
	object_put_locked(o);
	return leave(CUDA_SUCCESS);
}
