/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The grant word (docs/grant-word.md) for Spin. README.md says what is modelled
 * and what is not; configs lists the configurations and what each must give.
 *
 * Pages 0 and 1 are two processes of vGPU 0, page 2 is the only one of vGPU 1.
 * Memory is sequentially consistent. What happens from outside is bounded:
 *
 *   T0 T1 T2   threads of each page that submit (T1=0: there is no page 1)
 *   SUB        submissions of each thread
 *   QMAX       revokes
 *   RMAX       drains that are resumed; OMAX: drains that are overruns
 *   LATE       an overrun is granted again, at its turn, before it has drained
 *   FREEZE     as LATE, and its processes stand still until then
 *   KMAX       a process is killed
 *   AMAX       how often vgpud is killed and starts again; with OVERKILL only
 *              while there is an overrun
 *   JOIN       page 1 says its first HELLO after the start
 *   DEP        work of page 0 ends only after thread DEP has submitted
 *   NOSYNC     no thread synchronises: words become idle by the library's thread
 *   HMAX       signal handlers that submit on thread 0, while it closes the
 *              word; with HGATE while it is inside the gate
 *   ABSENCE    while vgpud is away for long, the library's thread stands in for it:
 *              3 on all pages, 1 on page 0
 *   FINE       nothing is merged into one step
 *
 * Each M_... plants a flaw.
 */
#ifndef T0
#define T0 1
#endif
#ifndef T1
#define T1 0
#endif
#ifndef T2
#define T2 1
#endif
#ifndef SUB
#define SUB 1
#endif
#ifndef QMAX
#define QMAX 0
#endif
#ifndef RMAX
#define RMAX 0
#endif
#ifndef OMAX
#define OMAX 0
#endif
#ifdef FREEZE
#define LATE
#endif

/* Steps that are one unless the model is FINE. */
#ifdef FINE
#define MERGE
#else
#define MERGE atomic
#endif
/* In a client: where a kill of vgpud in between matters. */
#ifdef AMAX
#define CUT } ; {
#else
#define CUT ;
#endif
/* Spin does not reduce what can be escaped from, so nothing is that need not. */
#ifdef KMAX
#define UNLESS_DEAD(p) unless { dead[p] }
#else
#define UNLESS_DEAD(p)
#endif

/* States of the word. */
#define CLOSED   0
#define OPEN     1
#define CLOSING  2
#define IDLE     3
#define DRAINING 4

/* Who loads words: threads 0 and 1 of page 0, 2 and 3 of page 1, 4 and 5 of page
 * 2, the library's threads 6, 7 and 8, a signal handler 9. A compare-and-swap
 * asks only whether the epoch is the same as when the word was loaded: so a
 * rising epoch clears same[] of all who have loaded that word. That is exact, and
 * no number makes states differ that behave alike. */
#define LIBRARY 6
#define HANDLER 9
bool same[10];

/* ---- the page ----------------------------------------------------------- */
byte st[3];                /* the word, but for its epoch */
bool wanted[3];
byte waiting[3];

/* ---- in the process ----------------------------------------------------- */
byte inside[3];            /* the gate's count */
bool closing[3];           /* the try-lock */
bool counted[6];           /* the thread is in waiting */
bool asleep[10];           /* on the word */
bool conn[3];              /* its messages reach vgpud */
bool nudged[3];            /* a message from vgpud lies in its socket */
byte out[3];               /* in flight */
bool dead[3];              /* killed */
#ifdef HMAX
bool handling;             /* a signal handler runs on thread 0 */
bool closer;               /* thread 0 holds closing ... */
bool interrupted;          /* ... and the handler undid its CLOSING */
byte handlers;
#endif

/* ---- what vgpud sees beside the pages ----------------------------------- */
bool bell[2];              /* a message from a client of that vGPU */
bool hello[3];
bool known[3];             /* the page is among the clients of its vGPU */
bool joined[3];            /* ... and may be opened */
bool torn[3];              /* killed, and its work is gone: the pidfd is readable */

/* ---- for the properties alone ------------------------------------------- */
byte pass[3];              /* threads that found the gate open and have not submitted */
bool over[2];              /* in a declared overrun */
bool up;                   /* vgpud is there and grants */
#ifdef DEP
bool freed;                /* thread DEP has submitted */
#endif

#define VG(p) ((p)/2)
#if T1
#define ANY(v, c) ((v==0 && (c(0) || c(1))) || (v==1 && c(2)))
#define BUSY0 (BUSY(0) || BUSY(1))
#else
#define ANY(v, c) ((v==0 && c(0)) || (v==1 && c(2)))
#define BUSY0 BUSY(0)
#endif

#ifdef FREEZE
bool frozen[2];
#define RUNS(p) (!frozen[VG(p)])
#else
#define RUNS(p) (1)
#endif

#define BUSY(p) (pass[p]+out[p]>0)
#ifdef ABSENCE
/* While it is away, and until all turns that the libraries granted have drained,
 * several vGPUs may compute. */
bool claimed=1;
#define CLAIMED claimed
#else
#define CLAIMED 1
#endif
/* Invariant 1 of docs/design.md; and what IDLE and CLOSED say. */
#define EXCLUSIVE assert(!CLAIMED || over[0] || over[1] || !(BUSY0 && BUSY(2)))
#define COMPLETE(p) assert(!BUSY(p))

inline rise(p) {
	if
	:: p==0 -> same[0]=0; same[1]=0; same[6]=0; same[9]=0
	:: p==1 -> same[2]=0; same[3]=0; same[7]=0
	:: p==2 -> same[4]=0; same[5]=0; same[8]=0
	fi
}

inline wake(p) {
	if
	:: p==0 -> asleep[0]=0; asleep[1]=0; asleep[9]=0
	:: p==1 -> asleep[2]=0; asleep[3]=0
	:: p==2 -> asleep[4]=0; asleep[5]=0
	fi
}

/* ---- the client: gate.c, thread.c --------------------------------------- */

inline ring(p) {
	if :: conn[p] -> bell[VG(p)]=1 :: else fi
}

#ifdef HMAX
inline interrupt(o) {
	if :: o==0 && handlers<HMAX -> handlers++; handling=1; (!handling) :: true fi
}
#ifdef M_HANDLERABA
#define UNDONE 0
#else
#define UNDONE (o==0 && interrupted)
#endif
#else
#define interrupt(o) skip
#define UNDONE 0
#endif
#ifdef HGATE
#define interrupt_inside(o) interrupt(o)
#else
#define interrupt_inside(o) skip
#endif

/* vgpu_gate_enter and the submission, by o of thread t, which counted itself in;
 * mine: a CLOSING that it sees is its own thread's. */
inline submit(p, o, t, mine) {
	do
	:: interrupt_inside(o);
again:	   atomic {
		/* It spins on another's CLOSING; and if its compare-and-swap of
		 * IDLE fails, it looks again. */
		(RUNS(p) && (st[p]!=CLOSING || mine)) ->
		if
		:: st[p]==CLOSED || st[p]==DRAINING -> s=st[p]; same[o]=1
		:: st[p]==OPEN || st[p]==IDLE -> st[p]=OPEN; pass[p]++; EXCLUSIVE; goto passed
#ifdef HMAX
		:: st[p]==CLOSING -> interrupted=1; st[p]=OPEN; goto again
#endif
		fi
	   };
	   MERGE {
		atomic { RUNS(p) -> inside[p]-- };
		atomic { RUNS(p) -> if :: !counted[t] -> counted[t]=1; waiting[p]++; first=(waiting[p]==1) :: else fi }
		CUT
		atomic { RUNS(p) -> if :: first -> ring(p) :: else fi; first=0 }
	   };
	   atomic { RUNS(p) -> if :: same[o] && st[p]==s -> asleep[o]=1 :: else fi; same[o]=0; s=0 };
	   atomic { (RUNS(p) && !asleep[o]) -> inside[p]++ }
	od;
passed:
	atomic { RUNS(p) -> out[p]++; pass[p]--;
#ifdef DEP
		if :: t==DEP -> freed=1 :: else fi;
#endif
		EXCLUSIVE
	}
}

/* vgpu_gate_leave */
inline leave(p, t) {
	MERGE {
		atomic { RUNS(p) -> if :: counted[t] -> counted[t]=0; waiting[p]-- :: else fi };
		atomic { RUNS(p) -> inside[p]-- }
	}
}

#ifdef M_NOWAITING
#define NOBODY(p) (inside[p]==0)
#else
#define NOBODY(p) (inside[p]==0 && waiting[p]==0)
#endif

/* vgpu_gate_try_idle */
inline try_idle(p, o) {
	atomic { RUNS(p) ->
		if
#ifdef M_HANDLERABA
		:: st[p]==OPEN ->
#else
		:: st[p]==OPEN && !closing[p] ->
#endif
		   st[p]=CLOSING; closing[p]=1; same[o]=1; ok=1;
#ifdef HMAX
		   if :: o==0 -> closer=1; interrupted=0 :: else fi
#endif
		:: else -> ok=0
		fi };
	if
	:: ok ->
	   interrupt(o);
#ifdef M_OUTFIRST
	   atomic { RUNS(p) -> if :: out[p]!=0 -> ok=0 :: else fi };
	   atomic { RUNS(p) -> if :: !NOBODY(p) -> ok=0 :: else fi };
#else
#ifdef FINE
	   atomic { RUNS(p) -> if :: inside[p]!=0 -> ok=0 :: else fi };
	   interrupt(o);
#endif
	   atomic { RUNS(p) -> if :: !NOBODY(p) -> ok=0 :: else fi };
	   interrupt(o);
	   atomic { RUNS(p) -> if :: out[p]!=0 -> ok=0 :: else fi };
#endif
	   interrupt(o);
#ifdef M_WANTEDFIRST
	   atomic { first=ok && wanted[p] };
#endif
	   atomic { RUNS(p) ->
		if
		:: st[p]==CLOSING && same[o] && !UNDONE ->
		   if :: ok -> st[p]=IDLE; COMPLETE(p) :: else -> st[p]=OPEN fi
		:: else -> ok=0
		fi;
		same[o]=0 };
	   interrupt(o);
	   MERGE {
		atomic { RUNS(p) -> closing[p]=0;
#ifdef HMAX
			if :: o==0 -> closer=0; interrupted=0 :: else fi
#endif
		};
#ifdef M_WANTEDFIRST
		atomic { RUNS(p) -> if :: ok && first -> ring(p) :: else fi; ok=0; first=0 }
#else
		atomic { RUNS(p) -> if :: ok && wanted[p] -> ring(p) :: else fi; ok=0 }
#endif
	   }
	:: else
	fi
}

proctype thread(byte p; byte me) {
	byte n, s;
	bool first, ok;
	{
#ifdef JOIN
	if :: p==1 -> hello[1]=1; (joined[1]) :: else fi;
#endif
	do
	:: atomic { (n<SUB && RUNS(p)) -> n++; inside[p]++ };
	   submit(p, me, me, 0);
	   leave(p, me);
	   /* It synchronises, or it does not. */
	   if
#ifndef NOSYNC
	   :: atomic { (RUNS(p) && out[p]==0) -> skip }; try_idle(p, me)
#endif
	   :: true
	   fi
	:: n==SUB -> break
	od
	} UNLESS_DEAD(p)
}

#ifdef HMAX
/* vgpu_gate_enter and _leave, called by a signal handler on thread 0. */
proctype handler() {
	byte s;
	bool first;
	{
	skip;
end:
	do
	:: atomic { (handling && RUNS(0)) -> inside[0]++ };
#ifdef M_SPIN
	   submit(0, HANDLER, 0, 0);
#else
	   submit(0, HANDLER, 0, closer);
#endif
	   leave(0, 0);
	   handling=0
	od
	} UNLESS_DEAD(0)
}
#endif

#ifdef ABSENCE
#define MINE mine
#else
#define MINE 0
#endif
#define LOOKS(p) (st[p]==DRAINING || ((st[p]==OPEN || st[p]==CLOSING) && wanted[p]))

/* The library's own thread. soon: it looks at the word until it may sleep. */
proctype library(byte p) {
	byte me=LIBRARY+p;
	bool ok, first, soon;
#ifdef ABSENCE
	bool stood, mine;  /* it granted a turn in this absence (once is enough here), and has it */
#endif
	{
	skip;
end:
	do
	:: atomic { (RUNS(p) && nudged[p]) -> nudged[p]=0; soon=LOOKS(p) }
	/* vgpu_gate_drain */
#ifdef M_DRAINOUTFIRST
	:: atomic { (RUNS(p) && soon && st[p]==DRAINING && out[p]==0) -> same[me]=1 };
	   atomic { (RUNS(p) && (inside[p]==0 || st[p]!=DRAINING)) -> skip };
#else
#ifdef FINE
	:: atomic { (RUNS(p) && soon && st[p]==DRAINING) -> same[me]=1 };
	   atomic { (RUNS(p) && (inside[p]==0 || st[p]!=DRAINING)) -> skip };
#else
	:: atomic { (RUNS(p) && soon && st[p]==DRAINING && inside[p]==0) -> same[me]=1 };
#endif
	   atomic { (RUNS(p) && (out[p]==0 || st[p]!=DRAINING || !same[me])) -> skip };
#endif
	   MERGE {
		atomic { RUNS(p) ->
			if
			:: st[p]==DRAINING && same[me] -> st[p]=CLOSED; ok=1; COMPLETE(p)
			:: else
			fi;
			same[me]=0 }
		CUT
		atomic { RUNS(p) -> if :: ok -> ring(p) :: else fi; ok=0 }
	   }
#ifndef M_NOLIBRARY
	:: (RUNS(p) && soon && st[p]==OPEN && wanted[p] && NOBODY(p) && out[p]==0) -> try_idle(p, me)
#endif
	:: atomic { (RUNS(p) && soon && !LOOKS(p)) -> soon=0 }
#ifdef AMAX
	/* reconnect: away while conn is 0. A drain goes on. */
	:: atomic { (RUNS(p) && !conn[p] && !soon && LOOKS(p)) -> soon=1 }
#ifdef ABSENCE
	/* stand_in */
	:: atomic { (p<ABSENCE && !conn[p] && !stood && waiting[p]>0 && (st[p]==CLOSED || st[p]==DRAINING)) ->
		st[p]=OPEN; rise(p); wake(p); stood=1; mine=1 }
	/* give_back; it waits for the end of the drain for a second only */
	:: atomic { (!conn[p] && mine) -> mine=0; soon=1;
		if
		:: st[p]==IDLE -> st[p]=CLOSED
		:: st[p]==OPEN || st[p]==CLOSING -> st[p]=DRAINING
		:: else
		fi }
#endif
	:: atomic { (!conn[p] && !MINE) -> soon=1;
#ifdef ABSENCE
	   stood=0;
#endif
#ifdef M_HELLOFIRST
	   hello[p]=1 };
	   conn[p]=1
#else
	   conn[p]=1 };
	   /* If vgpud died meanwhile, it fails and all that is done again. */
	   atomic { if :: conn[p] -> hello[p]=1 :: else fi }
#endif
#endif
	od
	} UNLESS_DEAD(p)
}

proctype gpu() {
end:
	do
#ifdef DEP
	:: atomic { (out[0]>0 && freed) -> out[0]-- }
#else
	:: atomic { out[0]>0 -> out[0]-- }
#endif
	:: atomic { out[1]>0 -> out[1]-- }
	:: atomic { out[2]>0 -> out[2]-- }
	od
}

#ifdef KMAX
inline kill(p) {
	atomic { dead[p]=1; pass[p]=0 };
#ifdef M_HUP
	torn[p]=1;         /* as if the hang-up of its socket were its death */
	out[p]=0
#else
	atomic { out[p]=0; torn[p]=1 }
#endif
}
proctype killer() {
	if
	:: kill(0)
#if T1
	:: kill(1)
#endif
#if T1 || T0!=T2
	:: kill(2) /* else it is as page 0 */
#endif
	:: true
	fi
}
#endif

/* ---- vgpud: node/{turn,words,recover}.go, and the engine's part ---------- */

#define AWAY  0            /* after a restart, and not adopted yet */
#define FREE  1
#define PEND  2
#define HOLD  3
#define DRAIN 4
#define OVER  5
#define NONE  2

#define KNOWN(p)    known[p]
#define MISSING(p)  (!known[p] && !torn[p])
#define WAITS(p)    (known[p] && waiting[p]>0)
#define INUSE(p)    (known[p] && st[p]!=CLOSED && st[p]!=IDLE)
#define NOTSHUT(p)  (known[p] && st[p]!=CLOSED)
#define DRAINS(p)   (known[p] && st[p]==DRAINING)
#define OPENABLE(p) (known[p] && joined[p] && st[p]==CLOSED)
#ifdef LATE
#define WANTS(v) (vs[v]==PEND || vs[v]==OVER)
#else
#define WANTS(v) (vs[v]==PEND)
#endif

/* Nobody has the GPU. After a restart, one that was or is an overrun may drain
 * without holding it. */
#if defined(AMAX) && !defined(M_DRAINSBESIDE)
#define UNHELD (up && holder==NONE && vs[0]!=DRAIN && vs[1]!=DRAIN)
#else
#define UNHELD (up && holder==NONE)
#endif

/* A step of vgpud; it may be killed before it instead. */
#ifdef AMAX
#ifdef OVERKILL
#define KILLED (kills<AMAX && (over[0] || over[1]))
#else
#define KILLED (kills<AMAX)
#endif
#define STEP(x) if :: MERGE { x } :: KILLED -> goto killed fi
#define STEP_WAKE(x, w) STEP(x); STEP(w)
#else
#define STEP(x) MERGE { x }
#define STEP_WAKE(x, w) MERGE { x; w }
#endif
/* For each page of v; with the wake-up that follows. */
#if T1
#define EACH(op) STEP(op(2*v)); STEP(if :: v==0 -> op(1) :: else fi)
#define EACH_WAKE(op) STEP_WAKE(op(2*v), wake_opened(2*v)); STEP_WAKE(if :: v==0 -> op(1) :: else fi, wake_opened(1))
#else
#define EACH(op) STEP(op(2*v))
#define EACH_WAKE(op) STEP_WAKE(op(2*v), wake_opened(2*v))
#endif

inline nudge(p) {
	if :: conn[p] -> nudged[p]=1 :: else fi
}

/* openWord; the wake-up is next, if opened. */
inline open_word(p) {
	atomic { if :: OPENABLE(p) -> s=(waiting[p]>0 -> OPEN : IDLE) :: else fi };
	atomic {
		if
		:: s!=CLOSED -> st[p]=s; s=CLOSED; opened=1;
			rise(p)
		:: else
		fi }
}
inline wake_opened(p) {
	atomic { if :: opened -> opened=0; wake(p) :: else fi }
}
inline grant_word(p) {
	atomic { if :: joined[p] -> wanted[p]=taking :: else fi };
	open_word(p)
}
/* What drains opens under a new epoch; what is closed already, as in a grant. */
inline resume_word(p) {
	atomic {
		if
		:: DRAINS(p) -> st[p]=OPEN;
#ifndef M_RESUMENOWAKE
			opened=1;
#endif
#ifndef M_RESUMENOEPOCH
			rise(p)
#endif
		:: else
#ifndef M_RESUMEPART
			-> open_word(p)
#endif
		fi }
}
/* takeWord; failed: one is not idle any more, and nothing more is taken. */
inline take_word(p) {
	atomic {
		if
		:: !NOTSHUT(p) || failed
		:: else ->
			if :: st[p]==IDLE -> st[p]=CLOSED :: else -> failed=1; nudge(p) fi
		fi }
}
/* revokeWord */
inline revoke_word(p) {
	atomic {
		if
		:: known[p] && st[p]==OPEN -> st[p]=DRAINING
#ifndef M_REVOKEOPEN
		:: known[p] && st[p]==CLOSING -> st[p]=DRAINING
#endif
		:: known[p] && st[p]==IDLE -> st[p]=CLOSED
		:: else
		fi };
	atomic { if :: NOTSHUT(p) -> nudge(p) :: else fi }
}
inline want_word(p) {
	atomic { if :: known[p] -> wanted[p]=taking :: else fi }
}
inline nudge_word(p) {
	atomic { if :: INUSE(p) -> nudge(p) :: else fi }
}
inline adopt_word(p) {
	atomic {
		if
		:: known[p] ->
#ifndef M_NOWAKE
			wake(p);
#endif
			nudge(p)
		:: else
		fi }
}

proctype vgpud() {
	byte vs[2]=FREE;
	byte holder=NONE;
	bool taking;
	byte revokes, resumes, overruns;
	byte v, s;
	bool opened, failed, drains;
#ifdef AMAX
	byte kills;
#endif

end:
	if
	:: atomic { bell[0] -> bell[0]=0; v=0; goto settle }
	:: atomic { bell[1] -> bell[1]=0; v=1; goto settle }
#ifdef JOIN
	/* addClient; join, when the page stands in the store */
	:: atomic { hello[1] -> hello[1]=0; known[1]=1; goto end }
	:: atomic { (known[1] && !joined[1]) -> joined[1]=1; v=0;
#ifndef M_JOINWANTED
		if :: vs[0]==HOLD -> wanted[1]=taking :: else fi;
#endif
		goto settle }
#endif
#ifdef AMAX
	:: KILLED -> goto killed
	:: atomic { hello[0] -> hello[0]=0; known[0]=1; goto end }
#if T1
	:: atomic { hello[1] -> hello[1]=0; known[1]=1; goto end }
#endif
	:: atomic { hello[2] -> hello[2]=0; known[2]=1; goto end }
#ifdef M_NOBARRIER
	:: atomic { (vs[0]==AWAY && ANY(0, KNOWN)) -> v=0; goto adopt }
	:: atomic { (vs[1]==AWAY && KNOWN(2)) -> v=1; goto adopt }
#else
	:: atomic { (vs[0]==AWAY && !ANY(0, MISSING)) -> v=0; goto adopt }
	:: atomic { (vs[1]==AWAY && !MISSING(2)) -> v=1; goto adopt }
#endif
#endif
#ifdef KMAX
	:: atomic { (known[0] && torn[0]) -> known[0]=0; v=0; goto settle }
#if T1
	:: atomic { (known[1] && torn[1]) -> known[1]=0; v=0; goto settle }
#endif
	:: atomic { (known[2] && torn[2]) -> known[2]=0; v=1; goto settle }
#endif
	/* Deadline: a quantum ends, a drain takes long. */
#if QMAX
	:: atomic { (revokes<QMAX && holder!=NONE && vs[holder]==HOLD && WANTS(1-holder)) ->
		revokes++; v=holder; goto revoke }
#endif
#if RMAX
	:: atomic { (resumes<RMAX && vs[0]==DRAIN && holder==0 && ANY(0, WAITS)) ->
		resumes++; v=0; goto resume }
	:: atomic { (resumes<RMAX && vs[1]==DRAIN && holder==1 && WAITS(2)) ->
		resumes++; v=1; goto resume }
#endif
#if OMAX
	:: atomic { (overruns<OMAX && vs[0]==DRAIN) -> v=0; goto overrun }
	:: atomic { (overruns<OMAX && vs[1]==DRAIN) -> v=1; goto overrun }
#endif
	fi;

	MERGE {
	skip;
settle:
	if
	:: vs[v]==FREE && ANY(v, WAITS) -> vs[v]=PEND
	:: vs[v]==HOLD ->
		if
		:: !ANY(v, KNOWN) -> goto complete
		:: else
		fi;
		if
#ifndef M_HOLDPENDING
		:: ANY(v, OPENABLE) -> goto reopen
#endif
		:: else -> if :: taking -> goto take :: else fi
		fi
#ifdef M_TRUST
	:: vs[v]==DRAIN || vs[v]==OVER -> goto complete
#else
	:: (vs[v]==DRAIN || vs[v]==OVER) && !ANY(v, NOTSHUT) -> goto complete
#endif
	:: else
	fi;

schedule:
#ifdef ABSENCE
	if
	:: up && vs[0]!=DRAIN && vs[1]!=DRAIN -> claimed=1; EXCLUSIVE
	:: else
	fi;
#endif
	if
	:: UNHELD && WANTS(0) -> v=0
	:: UNHELD && WANTS(1) -> v=1
	:: up && holder!=NONE && vs[holder]==HOLD && taking!=WANTS(1-holder) ->
		v=holder; taking=!taking; goto want
	:: else -> v=0; goto end
	fi;
	holder=v;
#ifdef ABSENCE
	claimed=1; EXCLUSIVE;
#endif
#ifdef LATE
	if
	:: vs[v]==OVER -> over[v]=0; EXCLUSIVE;
#ifdef FREEZE
		frozen[v]=0;
#endif
		goto resume
	:: else
	fi;
#endif
	assert(!ANY(v, NOTSHUT));
	vs[v]=HOLD; taking=WANTS(1-v);
	goto grant;

take:
	if
	:: ANY(v, INUSE) ->
#ifndef M_NONUDGE
		nudge_word(2*v);
#if T1
		if :: v==0 -> nudge_word(1) :: else fi;
#endif
#endif
		v=0; goto end
	:: else -> goto take_words
	fi;

complete:
	/* Now, with all words closed, waiting is read. */
#ifdef M_MESSAGE
	vs[v]=FREE;
#else
	vs[v]=(ANY(v, WAITS) -> PEND : FREE);
#endif
	if :: holder==v -> holder=NONE; taking=0 :: else fi;
	over[v]=0;
#ifdef FREEZE
	frozen[v]=0;
#endif
	goto schedule
	};

grant:
	EACH_WAKE(grant_word);
	MERGE { if :: !ANY(v, KNOWN) -> goto complete :: taking -> goto take :: else -> goto schedule fi };
reopen:
	EACH_WAKE(open_word);
	MERGE { if :: taking -> goto take :: else -> goto schedule fi };
want:
	EACH(want_word);
	MERGE { if :: taking -> goto take :: else -> goto schedule fi };
take_words:
	EACH(take_word);
	if :: !failed -> goto complete :: else -> failed=0 fi;
	EACH_WAKE(open_word);
	goto schedule;
revoke:
	MERGE { vs[v]=DRAIN; if :: holder==v -> taking=0 :: else fi };
	EACH(revoke_word);
	goto settle;
#if RMAX || defined(LATE)
resume:
	vs[v]=HOLD;
	EACH_WAKE(resume_word);
	goto schedule;
#endif
#if OMAX
overrun:
	atomic {
		overruns++; over[v]=1;
		if :: holder==v -> holder=NONE :: else fi;
#ifdef M_OVERFREE
		vs[v]=(ANY(v, WAITS) -> PEND : FREE);
#else
		vs[v]=OVER;
#endif
#ifdef FREEZE
		frozen[v]=1;
#endif
		goto schedule
	};
#endif
#ifdef AMAX
adopt:
	/* In this order: between the two, what drains may close. */
	drains=ANY(v, DRAINS);
	MERGE {
	failed=ANY(v, NOTSHUT);
	if
	:: failed -> failed=0;
		vs[v]=(drains || holder!=NONE -> DRAIN : HOLD);
		if :: holder==NONE -> holder=v :: else fi
	:: else -> over[v]=0; vs[v]=(ANY(v, WAITS) -> PEND : FREE)
	fi;
	drains=0
	};
	if :: vs[v]==DRAIN || vs[v]==HOLD -> EACH(want_word) :: else fi;
	if :: vs[v]==DRAIN -> EACH(revoke_word) :: else fi;
	EACH(adopt_word);
#ifdef M_NOBARRIER
	atomic { up=1; goto settle };
#else
	atomic { up=(vs[0]!=AWAY && vs[1]!=AWAY); goto settle };
#endif
killed:
	atomic {
		kills++; up=0;
#ifdef ABSENCE
		claimed=0;
#endif
		vs[0]=AWAY; vs[1]=AWAY; holder=NONE; taking=0;
		v=0; s=CLOSED; opened=0; failed=0; drains=0;
		bell[0]=0; bell[1]=0;
		conn[0]=0; conn[1]=0; conn[2]=0;
		hello[0]=0; hello[1]=0; hello[2]=0;
		nudged[0]=0; nudged[1]=0; nudged[2]=0;
		known[0]=0; known[1]=0; known[2]=0;
		goto end
	}
#endif
}

init {
	atomic {
		up=1;
		conn[0]=1; known[0]=1; joined[0]=1;
		conn[2]=1; known[2]=1; joined[2]=1;
		run vgpud();
		run gpu();
		run library(0);
		run library(2);
		if :: T0>0 -> run thread(0, 0) :: else fi;
		if :: T0>1 -> run thread(0, 1) :: else fi;
		if :: T2>0 -> run thread(2, 4) :: else fi;
		if :: T2>1 -> run thread(2, 5) :: else fi;
#if T1
		conn[1]=1;
#ifndef JOIN
		known[1]=1; joined[1]=1;
#endif
		run library(1);
		run thread(1, 2);
		if :: T1>1 -> run thread(1, 3) :: else fi;
#else
		torn[1]=1;
#endif
#ifdef HMAX
		run handler();
#endif
#ifdef KMAX
		run killer();
#endif
	}
}
