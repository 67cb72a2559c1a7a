// Measures what a step costs besides the gradients; see ../README.md. The same program as ../step.c.
//
// Rank 0 prints CSV: language,workers,median_us,p10_us,p90_us.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"sort"
	"time"

	"dsgd.io/dsgd"
)

var tensors = []struct {
	name  string
	shape []int
}{{"hidden.weight", []int{64, 128}}, {"hidden.bias", []int{128}}, {"output.weight", []int{128, 10}}, {"output.bias", []int{10}}}

// percentile is the nearest rank.
func percentile(ordered []float64, percent int) float64 {
	return ordered[max((len(ordered)*percent+99)/100-1, 0)]
}

func measure(steps int) error {
	session, err := dsgd.Init(dsgd.NewConfig())
	if err != nil {
		return err
	}
	defer session.Close()
	replica, err := session.AddReplica("cpu")
	if err != nil {
		return err
	}
	var buffers []*dsgd.Buffers[float32]
	for _, tensor := range tensors {
		parameter, err := session.AddParameter(tensor.name, dsgd.Float32, tensor.shape)
		if err != nil {
			return err
		}
		buffer, err := dsgd.Alloc[float32](replica, parameter)
		if err != nil {
			return err
		}
		for i := range buffer.Gradient {
			buffer.Gradient[i] = 1
		}
		buffers = append(buffers, buffer)
	}
	// A power of two: the values can be told exactly.
	if err := session.SetOptimizer("sgd", "lr=0.0009765625"); err != nil {
		return err
	}
	if err := session.Start(context.Background()); err != nil {
		return err
	}

	times := make([]float64, 2*steps)
	ctx := context.Background()
	for i := range times {
		began := time.Now()
		if _, err := session.Step(ctx, 1); err != nil {
			return err
		}
		times[i] = float64(time.Since(began).Nanoseconds()) * 1e-3
	}

	expected := -float32(2*steps) / 1024
	for t, buffer := range buffers {
		for i, value := range buffer.Value {
			if value != expected {
				return fmt.Errorf("wrong value: element %d of %s is %g instead of %g", i, tensors[t].name, value, expected)
			}
		}
	}
	if session.Rank() == 0 {
		timed := times[steps:]
		sort.Float64s(timed)
		fmt.Println("language,workers,median_us,p10_us,p90_us")
		fmt.Printf("go,%d,%.2f,%.2f,%.2f\n", session.Size(), percentile(timed, 50), percentile(timed, 10),
			percentile(timed, 90))
	}
	return nil
}

func main() {
	steps := flag.Int("steps", 2000, "timed steps; as many go before them to warm up")
	flag.Parse()
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	if *steps < 1 {
		log.Fatalf("-steps %d: give at least 1", *steps)
	}
	if err := measure(*steps); err != nil {
		log.Fatal(err)
	}
}
