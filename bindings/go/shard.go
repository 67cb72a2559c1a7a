package dsgd

import (
	"runtime"

	"dsgd.io/dsgd/internal/raw"
)

// Shard is the data shard of this worker: which sample indices it reads in an epoch. Over all workers every index
// 0 .. samples-1 comes exactly once per epoch, also if workers are lost and the job goes on: then call Next again even if
// it has returned 0. One goroutine at a time.
type Shard struct {
	session *Session
	handle  uintptr
}

// NewShard stands at the beginning of epoch 0. The order depends on seed and epoch alone.
func (s *Session) NewShard(samples, seed uint64, flags ...ShardFlag) (*Shard, error) {
	var all ShardFlag
	for _, flag := range flags {
		all |= flag
	}
	var handle uintptr
	err := call(s, func(err *uintptr) int { return raw.Dsgd_shard_new(s.pointer(), samples, seed, uint(all), &handle, err) })
	if err != nil {
		return nil, err
	}
	shard := &Shard{session: s, handle: handle}
	runtime.SetFinalizer(shard, func(shard *Shard) { raw.Dsgd_shard_free(shard.handle) })
	return shard, nil
}

// SetEpoch goes to the beginning of an epoch, 0, 1, 2, ...
func (s *Shard) SetEpoch(epoch uint64) error {
	return call(s, func(err *uintptr) int { return raw.Dsgd_shard_epoch(s.pointer(), epoch, err) })
}

// Seek goes to a position in an epoch's order of all samples: the workers together have read the first position indices,
// and the rest is split among them anew. A job can thus resume in mid-epoch with another number of workers.
func (s *Shard) Seek(epoch, position uint64) error {
	return call(s, func(err *uintptr) int { return raw.Dsgd_shard_seek(s.pointer(), epoch, position, err) })
}

// Epoch returns the shard's epoch: the last one that was set, or that of the checkpoint that was loaded.
func (s *Shard) Epoch() uint64 {
	defer runtime.KeepAlive(s)
	return raw.Dsgd_shard_current_epoch(s.pointer())
}

// Position returns how many samples of the epoch all workers together have read, for Seek. It is right only if each worker
// has drawn as many indices as this one.
func (s *Shard) Position() uint64 {
	defer runtime.KeepAlive(s)
	return raw.Dsgd_shard_position(s.pointer())
}

// Next fills indices with the next ones and returns their number; 0 when this worker has drawn its part of the epoch.
func (s *Shard) Next(indices []int64) (int, error) {
	if len(indices) == 0 {
		return 0, invalid("the slice for the indices is empty: give it the length of a batch")
	}
	var count uint64
	err := call(s, func(err *uintptr) int { return raw.Dsgd_shard_next(s.pointer(), indices, &count, err) })
	return int(count), err
}

// Size is the number of indices per epoch on this worker.
func (s *Shard) Size() uint64 {
	defer runtime.KeepAlive(s)
	return raw.Dsgd_shard_size(s.pointer())
}

func (s *Shard) pointer() uintptr {
	if s == nil {
		return 0
	}
	return s.handle
}
