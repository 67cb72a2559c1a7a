package dsgd

import (
	"context"
	"runtime"
	"sync"

	"dsgd.io/dsgd/internal/raw"
)

// Head runs the head of a job outside the workers. Keep it reachable: a Head that the program forgot stops when the garbage
// collector finds it.
type Head struct {
	mu      sync.RWMutex // writing: the handle is being freed
	handle  uintptr      // 0 once closed
	address string
}

// StartHead binds the configuration's `head` address (port 0: any) and serves one job until it is closed. A nil config
// means environment and defaults.
//
// With the key `head_state`, a path, the head keeps its job in that file. If the head is lost, the workers train on and dial
// it again, for `head_timeout`. A head that is then started at the same address, with the same file, keys and token, goes on
// with the job. Close does not remove the file; the end of the job does. With `head_state` = "etcd://HOST:PORT/PREFIX"
// several heads of a job may run on several machines: one serves, the others stand by. The workers' key `head` lists all.
func StartHead(config *Config) (*Head, error) {
	var handle uintptr
	err := config.use(func(configured uintptr, _ LogFunc) error {
		return call(config, func(err *uintptr) int { return raw.Dsgd_head_start(configured, &handle, err) })
	})
	if err != nil {
		return nil, err
	}
	h := &Head{handle: handle, address: raw.Dsgd_head_address(handle)}
	runtime.SetFinalizer(h, func(h *Head) { go h.Close() })
	return h, nil
}

// Address that workers can be told, with the real port.
func (h *Head) Address() string { return h.address }

// Wait waits until the job has ended: nil when all workers left, else the error that broke it. When the context ends first,
// its error is returned.
func (h *Head) Wait(ctx context.Context) error {
	if ctx == nil {
		ctx = context.Background()
	}
	// Always in slices, so that Close need not wait for the end of the job.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return untilCancelled(ctx, func(timeoutMS int) error {
		h.mu.RLock()
		defer h.mu.RUnlock()
		if h.handle == 0 {
			return &Error{Status: ErrClosed, Rank: -1, Message: "the head was closed: start another with StartHead"}
		}
		return call(h, func(err *uintptr) int { return raw.Dsgd_head_wait(h.handle, timeoutMS, err) })
	})
}

// Close stops the head. Closing twice is fine.
func (h *Head) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	raw.Dsgd_head_free(h.handle)
	h.handle = 0
	runtime.SetFinalizer(h, nil)
	return nil
}
