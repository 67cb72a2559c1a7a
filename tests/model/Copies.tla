------------------------------- MODULE Copies -------------------------------
(* One key range of `ps` with copies=2 (core/step/state_copies.h, core/session/state_placement.h): its owner and one more
   worker keep the optimizer's state of the range, and all workers have its values.  Workers are lost and join, so views
   change, and so do the owner and the copy.  Elastic.tla has the steps, the views and the head in detail; here a view is
   durable and published at once, a step is one range, and a copy of the values is one action.  Messages are sets that only
   grow: any may arrive at any later time, in any order, twice, or never.  Most BOOLEAN constants are rules; FALSE is the
   mistake that the rule forbids. *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS Workers,
          M0,            \* the first view
          MaxStep, MaxLoss, MaxJoin, MaxEpoch,
          MadeFirst,     \* a worker commits when all workers have told that their copies have the next state
          NextApart,     \* the next state is computed beside the present one, which the commit replaces
          Fence,         \* means and state that were sent in another view are not used
          HeldOnly,      \* a worker reports that it holds the state only when it does
          AgreeFirst,    \* a worker releases state when all workers have what the view gives them
          AdvanceFirst   \* a worker gives state in a view after it has made up for the step that it lacks

\* The order in which workers keep the range: owner, copy, the next copy, ...
Ring == SelectSeq(<<3, 1, 4, 2>>, LAMBDA w : w \in Workers)
None == <<>>

\* A history is the list of the sets of workers whose gradients the steps have used. Values and state that differ in it
\* differ in their bits.
VARIABLES views,          \* members, by epoch
          alive, in,      \* in: the epoch of a worker, 0 before it has joined
          val, learner,   \* val: history of the values; learner: has joined and has no values yet
          state, next,    \* history of the state of the range, present and next
          held,           \* whether this worker says that it holds the state
          copied, placed, \* in its view: has values as new as any, and may take steps
          mG, mV, mM,     \* gradients; new values, and the mean that they come from; "my copies are made"
          mR, mT, mD,     \* reports; state on its way; "I have what the view gives me"
          hurt, n         \* hurt: a worker was lost, and the change of the view has not ended
vars == <<views, alive, in, val, learner, state, next, held, copied, placed, mG, mV, mM, mR, mT, mD, hurt, n>>

Epoch == Len(views)
M(w) == views[in[w]]
InView(w) == alive[w] /\ in[w] > 0
Keepers(m) == LET order == SelectSeq(Ring, LAMBDA w : w \in m) IN {order[i] : i \in 1..(IF Len(order) < 2 THEN Len(order) ELSE 2)}
Owner(m) == LET order == SelectSeq(Ring, LAMBDA w : w \in m) IN order[1]
Steps(w) == Len(val[w])
Steady(w) == InView(w) /\ placed[w]

Init == /\ views = <<M0>> /\ alive = [w \in Workers |-> TRUE]
        /\ in = [w \in Workers |-> IF w \in M0 THEN 1 ELSE 0]
        /\ val = [w \in Workers |-> None] /\ state = val /\ next = val
        /\ learner = [w \in Workers |-> w \notin M0]
        /\ held = [w \in Workers |-> w \in Keepers(M0)]
        /\ copied = [w \in Workers |-> w \in M0] /\ placed = copied
        /\ mG = {} /\ mV = {} /\ mM = {} /\ mR = {} /\ mT = {} /\ mD = {}
        /\ hurt = FALSE /\ n = [loss |-> 0, join |-> 0]

\* ---------------------------------------------------------------- a step
Contribute(w) ==
  /\ Steady(w) /\ Steps(w) < MaxStep
  /\ <<in[w], Steps(w) + 1, w>> \notin mG
  /\ mG' = mG \cup {<<in[w], Steps(w) + 1, w>>}
  /\ UNCHANGED <<views, alive, in, val, learner, state, next, held, copied, placed, mV, mM, mR, mT, mD, hurt, n>>

\* The owner has all gradients: it computes new values and the next state, and sends the values to all and the mean to the
\* copy.
Reduce(o) ==
  /\ Steady(o) /\ o = Owner(M(o))
  /\ LET t == Steps(o) + 1 IN
     /\ \A w \in M(o) : <<in[o], t, w>> \in mG
     /\ ~\E m \in mV : m[1] = in[o] /\ m[2] = t
     /\ mV' = mV \cup {<<in[o], t, Append(state[o], M(o)), M(o)>>}
     /\ next' = [next EXCEPT ![o] = Append(state[o], M(o))]
     /\ state' = IF NextApart THEN state ELSE [state EXCEPT ![o] = Append(state[o], M(o))]
     /\ mM' = mM \cup {<<in[o], t, o>>}
  /\ UNCHANGED <<views, alive, in, val, learner, held, copied, placed, mG, mR, mT, mD, hurt, n>>

\* A worker has the results, and where it keeps a copy, the mean.
Make(w) ==
  /\ Steady(w) /\ w # Owner(M(w)) /\ <<in[w], Steps(w) + 1, w>> \notin mM
  /\ \E m \in mV :
       /\ m[2] = Steps(w) + 1 /\ (m[1] = in[w] \/ ~Fence)
       /\ IF w \in Keepers(M(w))
          THEN /\ next' = [next EXCEPT ![w] = Append(state[w], m[4])]
               /\ state' = IF NextApart THEN state ELSE [state EXCEPT ![w] = Append(state[w], m[4])]
          ELSE UNCHANGED <<next, state>>
  /\ mM' = mM \cup {<<in[w], Steps(w) + 1, w>>}
  /\ UNCHANGED <<views, alive, in, val, learner, held, copied, placed, mG, mV, mR, mT, mD, hurt, n>>

Commit(w) ==
  /\ Steady(w)
  /\ LET t == Steps(w) + 1 IN
     \E m \in mV :
       /\ m[1] = in[w] /\ m[2] = t
       /\ w \in Keepers(M(w)) => <<in[w], t, w>> \in mM
       /\ MadeFirst => \A x \in M(w) : <<in[w], t, x>> \in mM
       /\ val' = [val EXCEPT ![w] = m[3]]
       /\ state' = IF NextApart /\ w \in Keepers(M(w)) THEN [state EXCEPT ![w] = next[w]] ELSE state
  /\ UNCHANGED <<views, alive, in, learner, next, held, copied, placed, mG, mV, mM, mR, mT, mD, hurt, n>>

\* ---------------------------------------------------------------- a change of the view
Adopt(w) ==
  /\ alive[w] /\ in[w] < Epoch /\ w \in views[Epoch]
  /\ LET mine == IF HeldOnly THEN held[w] ELSE held[w] \/ w \in Keepers(views[Epoch]) IN
     /\ held' = [held EXCEPT ![w] = mine]
     /\ mR' = mR \cup {<<Epoch, w, Steps(w), mine, learner[w]>>}
  /\ in' = [in EXCEPT ![w] = Epoch]
  /\ copied' = [copied EXCEPT ![w] = FALSE] /\ placed' = [placed EXCEPT ![w] = FALSE]
  /\ UNCHANGED <<views, alive, val, learner, state, next, mG, mV, mM, mT, mD, hurt, n>>

Reports(e) == {m \in mR : m[1] = e}
All(e) == {m[2] : m \in Reports(e)} = views[e]
\* The lowest of the workers with most steps.
Source(e) == LET with == {m \in Reports(e) : ~m[5]}
                 most == {m \in with : \A x \in with : x[3] <= m[3]}
             IN IF most = {} THEN 0 ELSE (CHOOSE m \in most : \A x \in most : m[2] <= x[2])[2]
Behind(e, w) == \E m, s \in Reports(e) : m[2] = w /\ s[2] = Source(e) /\ (m[5] \/ m[3] < s[3])

Copy(w) ==
  /\ InView(w) /\ ~copied[w] /\ All(in[w]) /\ Source(in[w]) # 0
  /\ IF Behind(in[w], w)
     THEN LET s == Source(in[w]) IN
          /\ alive[s] /\ in[s] = in[w]
          /\ val' = [val EXCEPT ![w] = val[s]]
          /\ state' = IF held[w] /\ ~learner[w] /\ NextApart THEN [state EXCEPT ![w] = next[w]] ELSE state
          /\ learner' = [learner EXCEPT ![w] = FALSE]
     ELSE UNCHANGED <<val, state, learner>>
  /\ copied' = [copied EXCEPT ![w] = TRUE]
  /\ UNCHANGED <<views, alive, in, next, held, placed, mG, mV, mM, mR, mT, mD, hurt, n>>

Holders(e) == {m[2] : m \in {x \in Reports(e) : x[4]}}
Giver(e) == LET k == Holders(e) \cap Keepers(views[e]) IN
            IF k # {} THEN CHOOSE w \in k : \A x \in k : w <= x ELSE CHOOSE w \in Holders(e) : \A x \in Holders(e) : w <= x
Takers(e) == Keepers(views[e]) \ Holders(e)

Give(w, to) ==
  /\ InView(w) /\ All(in[w]) /\ Holders(in[w]) # {} /\ w = Giver(in[w]) /\ to \in Takers(in[w])
  /\ copied[w] \/ ~AdvanceFirst
  /\ ~\E m \in mT : m[1] = in[w] /\ m[2] = to
  /\ mT' = mT \cup {<<in[w], to, state[w]>>}
  /\ UNCHANGED <<views, alive, in, val, learner, state, next, held, copied, placed, mG, mV, mM, mR, mD, hurt, n>>

\* A worker has what the view gives it, and tells all others.
Have(w) ==
  /\ InView(w) /\ copied[w] /\ ~placed[w] /\ <<in[w], w>> \notin mD
  /\ Takers(in[w]) # {} /\ Holders(in[w]) # {}
  /\ IF w \in Takers(in[w])
     THEN \E m \in mT : /\ (m[1] = in[w] \/ ~Fence) /\ m[2] = w
                        /\ state' = [state EXCEPT ![w] = m[3]] /\ held' = [held EXCEPT ![w] = TRUE]
     ELSE UNCHANGED <<state, held>>
  /\ mD' = mD \cup {<<in[w], w>>}
  /\ UNCHANGED <<views, alive, in, val, learner, next, copied, placed, mG, mV, mM, mR, mT, hurt, n>>

Place(w) ==
  /\ InView(w) /\ copied[w] /\ ~placed[w] /\ Holders(in[w]) # {}
  /\ Takers(in[w]) # {} => <<in[w], w>> \in mD /\ (AgreeFirst => \A x \in M(w) : <<in[w], x>> \in mD)
  /\ placed' = [placed EXCEPT ![w] = TRUE]
  /\ held' = [held EXCEPT ![w] = w \in Keepers(M(w))]
  /\ UNCHANGED <<views, alive, in, val, learner, state, next, copied, mG, mV, mM, mR, mT, mD, hurt, n>>

\* ---------------------------------------------------------------- losses and joins
Last == views[Epoch]
Settled == \A w \in Last : alive[w] /\ in[w] = Epoch /\ placed[w]
Lose(w, dies) ==
  /\ ~hurt /\ n.loss < MaxLoss /\ Epoch < MaxEpoch /\ alive[w] /\ w \in Last /\ Cardinality(Last) > 1
  /\ alive' = IF dies THEN [alive EXCEPT ![w] = FALSE] ELSE alive  \* else it is stopped, or cut off, and goes on in its view
  /\ views' = Append(views, Last \ {w})
  /\ hurt' = TRUE /\ n' = [n EXCEPT !.loss = @ + 1]
  /\ UNCHANGED <<in, val, learner, state, next, held, copied, placed, mG, mV, mM, mR, mT, mD>>
Recovered == hurt /\ Settled /\ hurt' = FALSE
             /\ UNCHANGED <<views, alive, in, val, learner, state, next, held, copied, placed, mG, mV, mM, mR, mT, mD, n>>
Join(w) ==
  /\ n.join < MaxJoin /\ Epoch < MaxEpoch /\ in[w] = 0 /\ alive[w] /\ \A e \in 1..Epoch : w \notin views[e]
  /\ views' = Append(views, Last \cup {w})
  /\ n' = [n EXCEPT !.join = @ + 1]
  /\ UNCHANGED <<alive, in, val, learner, state, next, held, copied, placed, mG, mV, mM, mR, mT, mD, hurt>>

\* All workers of the last view have made all steps, or they are learners alone.
Over == \/ \A w \in Last : alive[w] /\ in[w] = Epoch /\ placed[w] /\ Steps(w) = MaxStep
        \/ \A w \in Last : learner[w]
Next == \/ \E w \in Workers : \/ Contribute(w) \/ Reduce(w) \/ Make(w) \/ Commit(w)
                              \/ Adopt(w) \/ Copy(w) \/ Have(w) \/ Place(w)
                              \/ \E to \in Workers : Give(w, to)
                              \/ \E dies \in BOOLEAN : Lose(w, dies)
                              \/ Join(w)
        \/ Recovered
        \/ (Over /\ UNCHANGED vars)
Spec == Init /\ [][Next]_vars

\* ---------------------------------------------------------------- what must hold
\* The state of a range survives a loss, and another loss after the view has changed.
Kept == (\E w \in Last : ~learner[w]) => \E w \in Last : alive[w] /\ held[w]
\* A worker that keeps the range and may take a step has the state that belongs to its values.
Right == \A w \in Last : Steady(w) /\ in[w] = Epoch /\ w \in Keepers(Last) => held[w] /\ state[w] = val[w]
\* Workers of the last view with as many steps have the same values.
Same == \A w, x \in Last : Steady(w) /\ Steady(x) /\ in[w] = Epoch /\ in[x] = Epoch /\ Steps(w) = Steps(x) => val[w] = val[x]
=============================================================================
