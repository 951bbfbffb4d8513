/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIMGPU_SHARED_EVENT_H
#define SIMGPU_SHARED_EVENT_H

#include "sim.h"

/* The part of an event that other processes see too. Each record has a number. */
struct shared_event *shared_event_new_locked(void);
void shared_event_free_locked(struct shared_event *s);
/* The number of a record that begins. */
uint32_t shared_event_record(struct shared_event *s);
void shared_event_done(struct shared_event *s, uint32_t number);
uint32_t shared_event_last(const struct shared_event *s);
bool shared_event_is_done(const struct shared_event *s, uint32_t number);
/* Until its last record of now is done. Lets the mutex go; the caller has a reference. */
void shared_event_wait_locked(struct shared_event *s);

#endif
