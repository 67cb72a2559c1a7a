package dsgd

import (
	"runtime"
	"sync"

	"dsgd.io/dsgd/internal/raw"
)

// core is what a session needs while C may still use its memory: the C handle, the pins of bound buffers, and the
// operations in flight with theirs. It is never reachable from a Session alone: `cores` holds it, so that a Session that
// the program forgot is collected without its pins being collected first, which Go answers with a panic.
type core struct {
	session uintptr
	workers sync.WaitGroup // the reaper and the log drain: both end after dsgd_close

	closing sync.Mutex // of what follows dsgd_close

	mu       sync.Mutex
	bound    map[boundKey]*runtime.Pinner
	ops      map[uintptr]*flight // in flight, by C handle
	starting int                 // goroutines within start
	early    map[uintptr]bool    // operations that ended before start put them into ops
	reaping  bool                // the reaper runs, or ran
	closed   bool                // dsgd_close has returned
}

type boundKey struct{ replica, parameter uintptr }

var cores = struct {
	sync.Mutex
	all map[*core]struct{}
}{all: map[*core]struct{}{}}

func newCore(session uintptr, log LogFunc) *core {
	c := &core{session: session, bound: map[boundKey]*runtime.Pinner{}, ops: map[uintptr]*flight{}, early: map[uintptr]bool{}}
	cores.Lock()
	cores.all[c] = struct{}{}
	cores.Unlock()
	if log != nil {
		c.workers.Add(1)
		go func() {
			defer c.workers.Done()
			c.drainLog(log)
		}()
	}
	return c
}

// close ends the session and everything that runs for it. The C handle stays valid: later calls find the session closed.
func (c *core) close(timeoutMS int) error {
	// Not under the mutex: of calls in progress, the earliest deadline ends all.
	err := call(c, func(err *uintptr) int { return raw.Dsgd_close(c.session, timeoutMS, err) })
	c.closing.Lock()
	defer c.closing.Unlock()
	c.mu.Lock()
	c.closed = true // from here on dsgd refuses to begin operations, and no reaper begins
	c.mu.Unlock()
	c.workers.Wait()
	for _, f := range c.inFlight() {
		f.finish()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, pins := range c.bound {
		pins.Unpin()
		delete(c.bound, key)
	}
	return err
}

// dispose ends a session that the program can no longer reach, and frees it.
func (c *core) dispose() {
	_ = c.close(0)
	raw.Dsgd_session_free(c.session)
	cores.Lock()
	delete(cores.all, c)
	cores.Unlock()
}

// replace makes pins the ones of a bound buffer; nil for memory that is not Go's. The old ones are let go.
func (c *core) replace(key boundKey, pins *runtime.Pinner) {
	if old := c.bound[key]; old != nil {
		old.Unpin()
	}
	if pins == nil {
		delete(c.bound, key)
	} else {
		c.bound[key] = pins
	}
}

// start begins an asynchronous operation whose buffers are pinned by pins (nil: none). begin may block: other operations begin
// and end meanwhile.
func (c *core) start(owner *Session, kind opKind, pins *runtime.Pinner, begin func(op *uintptr, err *uintptr) int) (*Op, error) {
	c.sweep()
	c.mu.Lock()
	c.starting++
	c.mu.Unlock()
	var handle uintptr
	err := call(owner, func(err *uintptr) int { return begin(&handle, err) })
	if err != nil {
		c.add(nil)
		if pins != nil {
			pins.Unpin()
		}
		return nil, err
	}
	f := &flight{core: c, key: handle, kind: kind, handle: handle, pins: pins, done: make(chan struct{})}
	op := &Op{owner: owner, id: raw.Dsgd_op_id(handle), flight: f} // before add, since another goroutine may then free the handle
	if c.add(f) {
		f.ended()
	}
	return op, nil
}

// add ends a start: it puts the operation into the table (nil: none has begun), and reports whether it may have ended before.
func (c *core) add(f *flight) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	ended := false
	if f != nil {
		c.ops[f.key] = f
		ended = c.early[f.key] || c.closed
		delete(c.early, f.key)
	}
	c.starting--
	if c.starting == 0 {
		clear(c.early)
	}
	return ended
}

// forget takes an operation that has ended from the table. Its handle may meanwhile be that of another.
func (c *core) forget(f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ops[f.key] == f {
		delete(c.ops, f.key)
	}
}

func (c *core) inFlight() []*flight {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*flight, 0, len(c.ops))
	for _, f := range c.ops {
		all = append(all, f)
	}
	return all
}

// sweep ends operations that have ended though nobody waits for them: those whose Op was dropped.
func (c *core) sweep() {
	c.mu.Lock()
	idle := c.reaping || len(c.ops) == 0
	c.mu.Unlock()
	if !idle {
		c.poll(make([]uintptr, 16), 0)
	}
}

// startReaper starts the goroutine that ends operations for which nobody waits, so that Op.Done is closed. It holds one OS
// thread until the session closes, however many operations there are.
func (c *core) startReaper() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reaping || c.closed {
		return
	}
	c.reaping = true
	c.workers.Add(1)
	go func() {
		defer c.workers.Done()
		handles := make([]uintptr, 64)
		for c.poll(handles, -1) {
		}
	}()
}

// poll takes operations that have ended from the session's queue, and completes their Ops. It returns false when the session
// is closed: close then finishes what is in flight, since dsgd uses its buffers until dsgd_close has returned.
func (c *core) poll(handles []uintptr, timeoutMS int) bool {
	var count uint64
	status := raw.Dsgd_queue_poll(c.session, handles, timeoutMS, &count, nil)
	for _, handle := range handles[:count] {
		c.mu.Lock()
		f := c.ops[handle] // none where a waiter was faster
		if f == nil && c.starting > 0 {
			c.early[handle] = true
		}
		c.mu.Unlock()
		if f != nil {
			f.ended()
		}
		raw.Dsgd_op_free(handle) // the reference of the poll
	}
	return status == 0 || Status(status) == ErrWaitTimeout
}
