package dsgd_test

import (
	"context"
	"fmt"
	"log"

	"dsgd.io/dsgd"
)

// Fits y = 2x + 1 on one worker; with num_workers and head set, the same program is one of many.
func Example() {
	session, err := dsgd.Init(dsgd.NewConfig())
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	line, err := session.AddParameter("line", dsgd.Float64, []int{2})
	if err != nil {
		log.Fatal(err)
	}
	replica, err := session.AddReplica("cpu")
	if err != nil {
		log.Fatal(err)
	}
	buffers, err := dsgd.Alloc[float64](replica, line)
	if err != nil {
		log.Fatal(err)
	}
	if err := session.SetOptimizer("sgd", "lr=0.1 momentum=0.5"); err != nil {
		log.Fatal(err)
	}
	shard, err := session.NewShard(20, 0)
	if err != nil {
		log.Fatal(err)
	}
	if err := session.Start(context.Background()); err != nil {
		log.Fatal(err)
	}
	slope, offset := &buffers.Value[0], &buffers.Value[1]
	batch := make([]int64, 5)
	for epoch := uint64(0); epoch < 200; epoch++ {
		if err := shard.SetEpoch(epoch); err != nil {
			log.Fatal(err)
		}
		for {
			n, err := shard.Next(batch)
			if err != nil {
				log.Fatal(err)
			}
			buffers.Gradient[0], buffers.Gradient[1] = 0, 0
			for _, index := range batch[:n] {
				x := float64(index)/10 - 1
				off := *slope*x + *offset - (2*x + 1)
				buffers.Gradient[0] += 2 * off * x / float64(n)
				buffers.Gradient[1] += 2 * off / float64(n)
			}
			result, err := session.Step(context.Background(), float64(n)) // 0 at the end of the epoch
			if err != nil {
				log.Fatal(err)
			}
			if result.AllDone {
				break
			}
		}
	}
	fmt.Printf("y = %.3f x + %.3f\n", *slope, *offset)
	// Output: y = 2.000 x + 1.000
}
