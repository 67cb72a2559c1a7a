------------------------------ MODULE Elastic ------------------------------
(* The step protocol of `allreduce` (direct: each part of the gradient has an owner who adds it up) while workers
   come and go.  README.md tells what is abstracted.  Messages are sets that only grow: any message may arrive at
   any later time, in any order, twice, or never, whatever connection it is on; so nothing here rests on FIFO.
   An evicted worker that goes on in its old epoch is the zombie; leases do not appear, since safety must not
   rest on them.  Most BOOLEAN constants are rules; FALSE is the mistake that the rule forbids. *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS M0,            \* first view, a set of numbers: worker ids, ranks go by their order
          Joiners,       \* who may come later
          MaxStep, Parts, MaxIdx,
          MaxCrash, MaxEvict, MaxHeadCrash,   \* MaxEvict: of workers that live (stopped, cut off)
          FreezeFirst,   \* R2: report only after everything of older epochs is stopped here
          Fence,         \* R1: what arrives under another epoch is not used
          ClearHeld,     \* R4: reduced parts of an attempt that has not committed are dropped at a view change
          KeepReduced,   \* R3: reduced parts of the last step outlive the begin of the next, until its header is complete
          Staged,        \* R5: what is fetched is applied when all of it is there
          CopyAny,       \* R5: without kept parts the state itself may be fetched, by any laggard
          CopyOnly,      \* R5: laggards always fetch the state itself, and no reduced parts are kept
          StableOnly,    \* R7: checkpoints and results leave the job only of steps that are stable
          StableJoin,    \* R8: a learner is given stable steps only
          Learns,        \* a learner may take a state before it enters a view; it enters with none otherwise
          Fetches,       \* a learner fetches each part of the state from a worker, also of a step that is not stable, and
                         \* follows that worker's steps; it enters a view with no state, and completes the parts there
          FromHolders,   \* R10: in a view, parts are completed from workers that have reported the most steps
          StreamsEnd,    \* R11: a worker's streams end when it copies a step, or leaves a view that has their learner
          HolderNeeded,  \* a view goes on only if one of its members holds a state: learners alone do not begin anew
          EmptyFirst,    \* a joiner's first step has weight 0; otherwise its host computes a gradient for it
          CloseStable,   \* R7: a worker leaves only when its last step is stable
          Durable,       \* R1: a view is durable before it is published
          Reserve,       \* R9: indices drawn by survivors stay theirs, those of the lost go back
          Fresh,         \* R1: who was evicted comes back as a new worker, without its state
          EngineReports  \* R2: recovery runs without the host's calls

Workers == M0 \cup Joiners
Idx == 1..MaxIdx
NONE == {<<0, 0>>}
NoView == [e |-> 0, m |-> {}]

VARIABLES alive, dur, mem, pub,          \* the head: durable view, view in memory, views published
          todo, dtodo,                   \* views that it has decided and not published, in memory and durable
          vw, rec, hist, grad, red, hok, kept, resv,
          part,                          \* streams to learners: by part the source, what has come, and whether it is complete
          mB, mG, mR,                    \* messages: header and contributions, reduced parts, reports
          stab, n, bad                   \* ghost: what left the job; counters; what must not be
vars == <<alive, dur, mem, pub, todo, dtodo, vw, rec, hist, grad, red, hok, kept, resv, part, mB, mG, mR, stab, n, bad>>

\* ---------------------------------------------------------------- helpers
Rank(w, m) == Cardinality({x \in m : x <= w})
Owner(p, m) == CHOOSE x \in m : Rank(x, m) = ((p - 1) % Cardinality(m)) + 1
Nth(S, k) == CHOOSE x \in S : Cardinality({y \in S : y <= x}) = k
Done(w) == Len(hist[w])
Tokens(h) == UNION {h[i] : i \in 1..Len(h)}
Consumed(h) == {t[2] : t \in Tokens(h)}
Max2(a, b) == IF a > b THEN a ELSE b
MaxOf(S) == CHOOSE x \in S : \A y \in S : y <= x
Prefix(a, b) == Len(a) <= Len(b) /\ \A i \in 1..Len(a) : a[i] = b[i]
Compatible(a, b) == Prefix(a, b) \/ Prefix(b, a)
ButLast(h) == SubSeq(h, 1, Max2(Len(h) - 1, 0))
NoParts == [p \in Parts |-> NONE]
E(w) == vw[w].e
M(w) == vw[w].m
Running(w) == alive[w] /\ E(w) > 0 /\ ~rec[w]
\* A history that leaves the job (a checkpoint, a final model), or is known to be everybody's.
Externalize(h) == /\ stab' = IF Len(h) > Len(stab) THEN h ELSE stab
                  /\ bad' = IF Compatible(h, stab) THEN bad ELSE "external results differ"
Reports(w) == {r \in mR : r[1] = E(w)}
FreshJoiner(w) == w \in Joiners /\ hist[w] = <<>>   \* it holds no state at all
AllReported(w) == \A x \in M(w) : \E r \in Reports(w) : r[2] = x
Holders(w) == {r[2] : r \in {x \in Reports(w) : x[3] = MaxOf({y[3] : y \in Reports(w)})}}
NoStream == [src |-> 0, h |-> <<>>, done |-> FALSE]
NoStreams == [p \in Parts |-> NoStream]
\* The streams of all learners; those from w to learners J end; those from w get its step.
EndStreams(w, J) == [j \in Joiners |-> [p \in Parts |->
                      IF j \in J /\ part[j][p].src = w THEN NoStream ELSE part[j][p]]]
Follow(w, step) == [j \in Joiners |-> [p \in Parts |->
                     IF part[j][p].src = w THEN [part[j][p] EXCEPT !.h = Append(@, step)] ELSE part[j][p]]]
Without(streams, w) == IF w \in Joiners THEN [streams EXCEPT ![w] = NoStreams] ELSE streams
Target(w) == MaxOf({r[3] : r \in Reports(w)})

Init ==
  /\ alive = [w \in Workers |-> TRUE]
  /\ dur = [e |-> 1, m |-> M0] /\ mem = dur /\ pub = {dur} /\ todo = <<>> /\ dtodo = <<>>
  /\ vw = [w \in Workers |-> IF w \in M0 THEN dur ELSE NoView]
  /\ rec = [w \in Workers |-> FALSE]
  /\ hist = [w \in Workers |-> <<>>]
  /\ grad = [w \in Workers |-> 0]          \* 0: host has not called; -1: weight 0; else the index it was computed on
  /\ red = [w \in Workers |-> NoParts]
  /\ hok = [w \in Workers |-> FALSE]
  /\ kept = [w \in Workers |-> FALSE]
  /\ resv = [w \in Workers |-> {}]
  /\ part = [j \in Joiners |-> NoStreams]
  /\ mB = {} /\ mG = {} /\ mR = {}
  /\ stab = <<>> /\ n = [crash |-> 0, evict |-> 0, head |-> 0] /\ bad = ""

headVars == <<dur, mem, pub, todo, dtodo>>

\* ---------------------------------------------------------------- the step
\* The host calls dsgd_step with a gradient of index `grad`; after the last step, the closing exchange.
Begin(w) ==
  /\ Running(w) /\ grad[w] = 0
  /\ LET s == Done(w) + 1
         free == Idx \ (Consumed(hist[w]) \cup resv[w])
         g == IF s > MaxStep THEN -1 ELSE Nth(free, Rank(w, M(w)))
     IN /\ grad' = [grad EXCEPT ![w] = g]
        /\ mB' = mB \cup {<<E(w), s, w, g>>}
  /\ kept' = IF KeepReduced THEN kept ELSE [kept EXCEPT ![w] = FALSE]
  /\ UNCHANGED <<part, alive, headVars, vw, rec, hist, red, hok, resv, mG, mR, stab, n, bad>>

HeaderComplete(w) ==
  /\ Running(w) /\ grad[w] # 0 /\ ~hok[w]
  /\ \A x \in M(w) : \E b \in mB : b[1] = E(w) /\ b[2] = Done(w) + 1 /\ b[3] = x
  /\ hok' = [hok EXCEPT ![w] = TRUE]
  /\ kept' = [kept EXCEPT ![w] = FALSE]
  /\ Externalize(hist[w])
  /\ UNCHANGED <<part, alive, headVars, vw, rec, hist, grad, red, resv, mB, mG, mR, n>>

Reduce(w, p) ==
  /\ Running(w) /\ Done(w) < MaxStep /\ red[w][p] = NONE /\ Owner(p, M(w)) = w
  /\ LET got == {b \in mB : b[1] = E(w) /\ b[2] = Done(w) + 1 /\ b[3] \in M(w)}
         sum == {<<b[3], b[4]>> : b \in {c \in got : c[4] > 0}}
     IN /\ {b[3] : b \in got} = M(w)
        /\ red' = [red EXCEPT ![w][p] = sum]
        /\ mG' = mG \cup {<<E(w), Done(w) + 1, p, sum>>}
  /\ UNCHANGED <<part, alive, headVars, vw, rec, hist, grad, hok, kept, resv, mB, mR, stab, n, bad>>

Land(w, p) ==
  /\ Running(w) /\ Done(w) < MaxStep /\ red[w][p] = NONE /\ grad[w] # 0
  /\ \E g \in mG : /\ g[2] = Done(w) + 1 /\ g[3] = p /\ (g[1] = E(w) \/ ~Fence)
                   /\ red' = [red EXCEPT ![w][p] = g[4]]
  /\ UNCHANGED <<part, alive, headVars, vw, rec, hist, grad, hok, kept, resv, mB, mG, mR, stab, n, bad>>

AllHeld(w) == \A p \in Parts : red[w][p] # NONE
Apply(w) ==
  LET sums == {red[w][p] : p \in Parts}
      next == Append(hist[w], CHOOSE x \in sums : TRUE)
  IN /\ hist' = [hist EXCEPT ![w] = next]
     /\ red' = [red EXCEPT ![w] = NoParts]
     /\ grad' = [grad EXCEPT ![w] = 0]
     /\ hok' = [hok EXCEPT ![w] = FALSE]
     /\ kept' = [kept EXCEPT ![w] = TRUE]
     /\ part' = Follow(w, next[Len(next)])
     /\ IF Cardinality(sums) > 1 THEN bad' = "contributions of two attempts in one step" /\ UNCHANGED stab
        ELSE IF StableOnly THEN UNCHANGED <<stab, bad>> ELSE Externalize(next)

Commit(w) ==
  /\ Running(w) /\ hok[w] /\ Done(w) < MaxStep /\ AllHeld(w)
  /\ Apply(w)
  /\ UNCHANGED <<alive, headVars, vw, rec, resv, mB, mG, mR, n>>

\* ---------------------------------------------------------------- a view change
Report(w, v) == <<v.e, w, Done(w), grad[w]>>

EarlyReport(w, v) ==   \* the mistake: it reports, and goes on
  /\ ~FreezeFirst /\ alive[w] /\ v.e > E(w) /\ E(w) > 0 /\ w \in v.m
  /\ ~\E r \in mR : r[1] = v.e /\ r[2] = w
  /\ mR' = mR \cup {Report(w, v)}
  /\ UNCHANGED <<part, alive, headVars, vw, rec, hist, grad, red, hok, kept, resv, mB, mG, stab, n, bad>>

Adopt(w, v) ==
  /\ alive[w] /\ v.e > E(w) /\ w \in v.m
  /\ ~EngineReports => (grad[w] # 0 \/ E(w) = 0)   \* the mistake: only from within a call of the host's, which is not to come
  /\ vw' = [vw EXCEPT ![w] = v]
  /\ rec' = [rec EXCEPT ![w] = TRUE]
  /\ hok' = [hok EXCEPT ![w] = FALSE]
  /\ red' = IF ClearHeld THEN [red EXCEPT ![w] = NoParts] ELSE red
  /\ grad' = IF E(w) = 0 /\ EmptyFirst THEN [grad EXCEPT ![w] = -1] ELSE grad
  /\ part' = IF FreshJoiner(w) THEN [part EXCEPT ![w] = [p \in Parts |-> IF @[p].done THEN NoStream ELSE @[p]]]
            ELSE IF StreamsEnd THEN EndStreams(w, M(w)) ELSE part
  /\ mR' = IF \E r \in mR : r[1] = v.e /\ r[2] = w THEN mR ELSE mR \cup {<<v.e, w, Done(w), grad'[w]>>}
  /\ bad' = IF ~Staged /\ rec[w] /\ (\E p \in Parts : red[w][p] # NONE) THEN "torn: half of a state" ELSE bad
  /\ UNCHANGED <<alive, headVars, hist, kept, resv, mB, mG, stab, n>>

\* Laggards fetch the reduced parts, or the state itself.
Fetch(w, p, h) ==
  /\ alive[w] /\ rec[w] /\ AllReported(w) /\ red[w][p] = NONE /\ ~CopyOnly
  /\ Target(w) = Done(w) + 1 /\ ~FreshJoiner(w)
  /\ alive[h] /\ h \in M(w) /\ vw[h] = vw[w] /\ Done(h) = Target(w) /\ kept[h]
  /\ red' = [red EXCEPT ![w][p] = hist[h][Done(h)]]
  /\ UNCHANGED <<part, alive, headVars, vw, rec, hist, grad, hok, kept, resv, mB, mG, mR, stab, n, bad>>

FetchCommit(w) ==
  /\ alive[w] /\ rec[w] /\ AllReported(w) /\ Target(w) = Done(w) + 1 /\ AllHeld(w)
  /\ Apply(w)
  /\ UNCHANGED <<alive, headVars, vw, rec, resv, mB, mG, mR, n>>

Copy(w, h) ==
  /\ alive[w] /\ rec[w] /\ AllReported(w) /\ Target(w) > Done(w)
  /\ ~(Fetches /\ FreshJoiner(w))
  /\ CopyAny \/ w \in Joiners
  /\ alive[h] /\ h \in M(w) /\ vw[h] = vw[w] /\ Done(h) = Target(w)
  /\ CopyOnly \/ ~(kept[h] /\ Target(w) = Done(w) + 1 /\ ~FreshJoiner(w))      \* else it fetches
  /\ hist' = [hist EXCEPT ![w] = hist[h]]
  /\ kept' = [kept EXCEPT ![w] = FALSE]
  /\ red' = [red EXCEPT ![w] = NoParts]
  /\ part' = IF StreamsEnd THEN EndStreams(w, Joiners) ELSE part
  /\ grad' = [grad EXCEPT ![w] = IF grad[w] = -1 THEN -1 ELSE 0]
  /\ UNCHANGED <<alive, headVars, vw, rec, hok, resv, mB, mG, mR, stab, n, bad>>

RecoverDone(w) ==
  /\ alive[w] /\ rec[w] /\ AllReported(w) /\ Done(w) >= Target(w)
  /\ HolderNeeded => \E r \in Reports(w) : ~(r[2] \in Joiners /\ r[3] = 0)
  /\ rec' = [rec EXCEPT ![w] = FALSE]
  /\ part' = Without(part, w)
  /\ resv' = [resv EXCEPT ![w] = IF Reserve THEN {r[4] : r \in Reports(w)} \cap Idx ELSE {}]
  /\ mB' = IF grad[w] = 0 THEN mB ELSE mB \cup {<<E(w), Done(w) + 1, w, grad[w]>>}
  /\ kept' = IF KeepReduced \/ grad[w] = 0 THEN kept ELSE [kept EXCEPT ![w] = FALSE]
  /\ UNCHANGED <<alive, headVars, vw, hist, grad, red, hok, mG, mR, stab, n, bad>>

\* A learner takes the state from any worker while the others train.
Learn(j, h) ==
  /\ Learns /\ alive[j] /\ alive[h] /\ E(j) = 0 /\ E(h) > 0
  /\ LET given == IF hok[h] \/ ~StableJoin THEN hist[h] ELSE ButLast(hist[h])
     IN /\ Len(given) > Len(hist[j])
        /\ hist' = [hist EXCEPT ![j] = given]
  /\ UNCHANGED <<part, alive, headVars, vw, rec, grad, red, hok, kept, resv, mB, mG, mR, stab, n, bad>>

\* A learner begins to fetch a part, from the worker whose part it is. The stream has all that its source has: what the
\* learner has not got yet does not count, since a part is completed in a view, from a source that makes no step there.
BeginStream(j, p, h) ==
  /\ Fetches /\ alive[j] /\ E(j) = 0 /\ part[j][p].src = 0
  /\ alive[h] /\ E(h) > 0 /\ h = Owner(p, M(h)) /\ ~FreshJoiner(h)
  /\ part' = [part EXCEPT ![j][p] = [src |-> h, h |-> hist[h], done |-> FALSE]]
  /\ UNCHANGED <<alive, headVars, vw, rec, hist, grad, red, hok, kept, resv, mB, mG, mR, stab, n, bad>>

\* In the view: a part goes on from its source, or begins anew if the stream has ended or its source is not a holder.
CompletePart(j, p, h) ==
  /\ Fetches /\ alive[j] /\ rec[j] /\ FreshJoiner(j) /\ AllReported(j) /\ Target(j) > 0 /\ ~part[j][p].done
  /\ alive[h] /\ h \in M(j) /\ vw[h] = vw[j] /\ ~FreshJoiner(h)
  /\ h \in Holders(j) \/ (~FromHolders /\ part[j][p].src = h)
  /\ part[j][p].src \in Holders(j) => part[j][p].src = h
  /\ part' = [part EXCEPT ![j][p] = [src |-> 0, h |-> IF @.src = h THEN @.h ELSE hist[h], done |-> TRUE]]
  /\ UNCHANGED <<alive, headVars, vw, rec, hist, grad, red, hok, kept, resv, mB, mG, mR, stab, n, bad>>

CompleteState(j) ==
  /\ alive[j] /\ rec[j] /\ FreshJoiner(j) /\ \A p \in Parts : part[j][p].done
  /\ LET states == {part[j][p].h : p \in Parts}
     IN /\ hist' = [hist EXCEPT ![j] = CHOOSE x \in states : TRUE]
        /\ bad' = IF \E x \in states : Len(x) # Target(j) THEN "torn: parts of different steps"
                  ELSE IF Cardinality(states) > 1 THEN "torn: parts of different histories" ELSE bad
  /\ part' = Without(part, j)
  /\ UNCHANGED <<alive, headVars, vw, rec, grad, red, hok, kept, resv, mB, mG, mR, stab, n>>

\* ---------------------------------------------------------------- the head
NewView(m) ==
  LET v == [e |-> mem.e + 1, m |-> m] IN
  /\ m # {} /\ m # mem.m
  /\ mem' = v
  /\ IF Durable THEN todo' = Append(todo, v) /\ UNCHANGED pub
                ELSE pub' = pub \cup {v} /\ UNCHANGED todo   \* the mistake: it tells a view before that is durable
  /\ UNCHANGED <<dur, dtodo>>

HeadEvict(x) ==
  /\ x \in mem.m /\ (~alive[x] \/ n.evict < MaxEvict)
  /\ NewView(mem.m \ {x})
  /\ n' = IF alive[x] THEN [n EXCEPT !.evict = @ + 1] ELSE n
  /\ UNCHANGED <<part, alive, vw, rec, hist, grad, red, hok, kept, resv, mB, mG, mR, stab, bad>>

HeadJoin(j) ==
  /\ alive[j] /\ j \notin mem.m
  /\ \/ j \in Joiners /\ E(j) = 0 /\ \A v \in pub \cup {dur, mem} \cup {todo[i] : i \in 1..Len(todo)} : j \notin v.m
     \/ ~Fresh /\ E(j) > 0
  /\ NewView(mem.m \cup {j})
  /\ UNCHANGED <<part, alive, vw, rec, hist, grad, red, hok, kept, resv, mB, mG, mR, stab, n, bad>>

HeadStore ==   \* the views that were decided since the last time are stored together
  /\ dur # mem /\ dur' = mem /\ dtodo' = todo
  /\ UNCHANGED <<part, alive, mem, pub, todo, vw, rec, hist, grad, red, hok, kept, resv, mB, mG, mR, stab, n, bad>>

HeadPublish ==   \* in order; dtodo is the begin of todo
  /\ dtodo # <<>> /\ pub' = pub \cup {Head(dtodo)}
  /\ dtodo' = Tail(dtodo) /\ todo' = Tail(todo)
  /\ UNCHANGED <<part, alive, dur, mem, vw, rec, hist, grad, red, hok, kept, resv, mB, mG, mR, stab, n, bad>>

HeadRestart ==   \* the record is all that the next head knows
  /\ n.head < MaxHeadCrash /\ mem # dur /\ mem' = dur /\ todo' = dtodo
  /\ n' = [n EXCEPT !.head = @ + 1]
  /\ UNCHANGED <<part, alive, dur, pub, dtodo, vw, rec, hist, grad, red, hok, kept, resv, mB, mG, mR, stab, bad>>

Crash(w) ==
  /\ alive[w] /\ n.crash < MaxCrash
  /\ alive' = [alive EXCEPT ![w] = FALSE]
  /\ part' = Without(EndStreams(w, Joiners), w)
  /\ n' = [n EXCEPT !.crash = @ + 1]
  /\ UNCHANGED <<headVars, vw, rec, hist, grad, red, hok, kept, resv, mB, mG, mR, stab, bad>>

LeaveEarly(w) ==   \* the mistake: the host has its result, closes, and takes it along
  /\ ~CloseStable /\ alive[w] /\ E(w) > 0 /\ Done(w) = MaxStep /\ ~hok[w]
  /\ alive' = [alive EXCEPT ![w] = FALSE]
  /\ part' = Without(EndStreams(w, Joiners), w)
  /\ Externalize(hist[w])
  /\ UNCHANGED <<headVars, vw, rec, hist, grad, red, hok, kept, resv, mB, mG, mR, n>>

\* ---------------------------------------------------------------- the end
Latest == CHOOSE v \in pub : \A u \in pub : u.e <= v.e
Over == \/ mem \in pub /\ \A w \in mem.m : alive[w] /\ vw[w] = mem /\ Done(w) = MaxStep /\ hok[w]
        \/ \A w \in mem.m : ~alive[w] \/ (HolderNeeded /\ FreshJoiner(w))   \* the job has failed
Terminating == Over /\ UNCHANGED vars

Next ==
  \/ \E w \in Workers :
       \/ Begin(w) \/ HeaderComplete(w) \/ Commit(w) \/ FetchCommit(w) \/ RecoverDone(w)
       \/ \E p \in Parts : Reduce(w, p) \/ Land(w, p) \/ \E h \in Workers : Fetch(w, p, h)
       \/ \E h \in Workers : Copy(w, h) \/ Learn(w, h)
       \/ w \in Joiners /\ \/ CompleteState(w)
                           \/ \E p \in Parts, h \in Workers : BeginStream(w, p, h) \/ CompletePart(w, p, h)
       \/ \E v \in pub : Adopt(w, v) \/ EarlyReport(w, v)
       \/ HeadEvict(w) \/ HeadJoin(w) \/ Crash(w) \/ LeaveEarly(w)
  \/ HeadPublish \/ HeadStore \/ HeadRestart \/ Terminating

Progress == \* all that is not a fault, nor a choice of the head's that it need not make
  \/ \E w \in Workers :
       \/ Begin(w) \/ HeaderComplete(w) \/ Commit(w) \/ FetchCommit(w) \/ RecoverDone(w)
       \/ \E p \in Parts : Reduce(w, p) \/ Land(w, p) \/ \E h \in Workers : Fetch(w, p, h)
       \/ \E h \in Workers : Copy(w, h)
       \/ w \in Joiners /\ (CompleteState(w) \/ \E p \in Parts, h \in Workers : CompletePart(w, p, h))
       \/ \E v \in pub : Adopt(w, v)
       \/ (~alive[w] /\ HeadEvict(w))
  \/ HeadStore \/ HeadPublish

Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ WF_vars(Progress)

\* ---------------------------------------------------------------- properties
Members == UNION {v.m : v \in {u \in pub : u.e = Latest.e}}

NothingBad == bad = ""
\* P1: workers of the newest view never hold different contributions for a step; with P2 this holds for joiners, too.
Agreement == \A a, b \in Members : E(a) > 0 /\ E(b) > 0 => Compatible(hist[a], hist[b])
\* P1 as asked for, of all workers, dead ones and zombies included: does not hold without a further round in each step.
Uniform == \A a, b \in Workers : Compatible(hist[a], hist[b])
\* A history that left the job, or is known to be everybody's, is never contradicted; a zombie is off by its last step at most.
StableKept == /\ \A w \in Members : E(w) > 0 => Compatible(hist[w], stab)
              /\ \A w \in Workers : Prefix(ButLast(hist[w]), stab) \/ Compatible(ButLast(hist[w]), stab)
\* P3: a step used all contributions of one view, but for joiners in their first step: all of the old view's, or exactly the survivors'.
WholeViews == \A w \in Workers : \A i \in 1..Done(w) :
                \E v \in pub : LET c == {t[1] : t \in hist[w][i]} IN c \subseteq v.m /\ v.m \ c \subseteq Joiners
\* P7: no index twice.
ExactlyOnce == \A w \in Workers : /\ Cardinality(Consumed(hist[w])) = Cardinality(Tokens(hist[w]))
                                  /\ \A i \in 1..Done(w) : Cardinality({t[1] : t \in hist[w][i]}) = Cardinality(hist[w][i])
\* An index that two members of the newest view have in hand at once would be consumed twice.
Disjoint == \A a, b \in Members : a # b /\ ~rec[a] /\ ~rec[b] /\ vw[a] = Latest /\ vw[b] = Latest /\ grad[a] > 0 /\ Done(a) = Done(b) => grad[a] # grad[b]
Finished == <>[](Over)
=============================================================================
