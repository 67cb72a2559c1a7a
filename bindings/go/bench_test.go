package dsgd

import (
	"context"
	"testing"
)

// The cost of a step besides its arithmetic: one worker, one small parameter.
func BenchmarkStep(b *testing.B) {
	session, err := Init(NewConfig())
	if err != nil {
		b.Fatal(err)
	}
	defer session.Close()
	p, err := session.AddParameter("p", Float32, []int{16})
	if err != nil {
		b.Fatal(err)
	}
	r, err := session.AddReplica("cpu")
	if err != nil {
		b.Fatal(err)
	}
	if _, err := Alloc[float32](r, p); err != nil {
		b.Fatal(err)
	}
	if err := session.Start(context.Background()); err != nil {
		b.Fatal(err)
	}
	endless, cancel := context.WithCancel(context.Background())
	defer cancel()
	for name, ctx := range map[string]context.Context{"blocking": context.Background(), "under a context": endless} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; i < b.N; i++ {
				if _, err := session.Step(ctx, 1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// One C call and back.
func BenchmarkCall(b *testing.B) {
	session, err := Init(NewConfig())
	if err != nil {
		b.Fatal(err)
	}
	defer session.Close()
	b.ReportAllocs()
	for i := 0; i < b.N; i++ {
		if session.Rank() != 0 {
			b.Fatal("rank")
		}
	}
}
