package main

import (
	"context"
	"fmt"

	"dsgd.io/dsgd"
)

// collective is one collective operation with its buffers.
type collective struct {
	run    func(ctx context.Context, s *dsgd.Session) error
	begin  func(s *dsgd.Session) (*dsgd.Op, error)
	result func() string
}

func collectiveOf(a arguments, rank, size int) (collective, error) {
	if a.name == "barrier" {
		return collective{
			func(ctx context.Context, s *dsgd.Session) error { return s.Barrier(ctx) },
			func(s *dsgd.Session) (*dsgd.Op, error) { return s.BarrierAsync() },
			func() string { return "" }}, nil
	}
	return elements[a.dtype(0)].collective(a, rank, size)
}

func (of[T]) collective(a arguments, rank, size int) (collective, error) {
	over := func(data []T) func() string {
		return func() string {
			h := newDigest()
			addAll(h, data)
			return h.line()
		}
	}
	switch a.name {
	case "allreduce":
		data, reduction := pattern[T](a.integer(1), a.integer(3), rank), a.reduction(2)
		return collective{
			func(ctx context.Context, s *dsgd.Session) error { return dsgd.AllReduce(ctx, s, data, reduction) },
			func(s *dsgd.Session) (*dsgd.Op, error) { return dsgd.AllReduceAsync(s, data, reduction) },
			over(data)}, nil
	case "broadcast":
		data, root := pattern[T](a.integer(1), a.integer(3), rank), a.integer(2)
		return collective{
			func(ctx context.Context, s *dsgd.Session) error { return dsgd.Broadcast(ctx, s, data, root) },
			func(s *dsgd.Session) (*dsgd.Op, error) { return dsgd.BroadcastAsync(s, data, root) },
			over(data)}, nil
	case "allgather":
		counts, own, all := parts(a.integers(1), rank, size)
		send, receive := pattern[T](own, a.integer(2), rank), make([]T, all)
		return collective{
			func(ctx context.Context, s *dsgd.Session) error { return dsgd.AllGather(ctx, s, send, receive, counts) },
			func(s *dsgd.Session) (*dsgd.Op, error) { return dsgd.AllGatherAsync(s, send, receive, counts) },
			over(receive)}, nil
	case "reduce_scatter":
		counts, own, all := parts(a.integers(1), rank, size)
		send, receive, reduction := pattern[T](all, a.integer(3), rank), make([]T, own), a.reduction(2)
		return collective{
			func(ctx context.Context, s *dsgd.Session) error {
				return dsgd.ReduceScatter(ctx, s, send, receive, counts, reduction)
			},
			func(s *dsgd.Session) (*dsgd.Op, error) {
				return dsgd.ReduceScatterAsync(s, send, receive, counts, reduction)
			},
			over(receive)}, nil
	}
	return collective{}, fmt.Errorf("'%s' is no collective", a.name)
}

// parts is what to give as counts for one number of the script (nil) or one for each rank, with this rank's and the sum.
func parts(numbers []int, rank, size int) (counts []int, own, all int) {
	if len(numbers) == 1 {
		return nil, numbers[0], numbers[0] * size
	}
	for _, n := range numbers {
		all += n
	}
	return numbers, numbers[rank], all
}
