// The worker of loss_worker.c in Go, with its arguments and its output, but without DEATH and SIGTERM.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"dsgd.io/dsgd"
)

const drawn = 64

// now reads CLOCK_MONOTONIC, as the workers in other languages do.
func now() float64 {
	const clockMonotonic = 1
	var at syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&at)), 0)
	return float64(at.Sec) + 1e-9*float64(at.Nsec)
}

// draw writes the samples of epoch 0 and returns their number.
func draw(shard *dsgd.Shard, step, most int) (int, error) {
	indices := make([]int64, most)
	count := 0
	if shard.Epoch() == 0 {
		var err error
		if count, err = shard.Next(indices); err != nil {
			return 0, err
		}
	}
	fmt.Print("drew ", step)
	for _, index := range indices[:count] {
		fmt.Print(" ", index)
	}
	fmt.Println()
	return count, nil
}

func train(session *dsgd.Session, number, steps, elements, microseconds, samples int) error {
	ctx := context.Background()
	replica, err := session.AddReplica("cpu")
	if err != nil {
		return err
	}
	parameter, err := session.AddParameter("p", dsgd.Float32, []int{elements})
	if err != nil {
		return err
	}
	buffers, err := dsgd.Alloc[float32](replica, parameter)
	if err != nil {
		return err
	}
	if err := session.SetOptimizer("sgd", "lr=1 momentum=0.5"); err != nil {
		return err
	}
	if err := session.Start(ctx); err != nil {
		return err
	}
	shard, err := session.NewShard(uint64(samples), 7)
	if err != nil {
		return err
	}
	info, err := session.Info()
	if err != nil {
		return err
	}
	var result dsgd.StepResult
	step := int(info.Steps) // 0, or where the job is that this worker has joined
	for ; step < steps || (step < elements && !result.AllDone); step++ {
		most := drawn
		if step < steps {
			most = 2
		}
		count, err := draw(shard, step, most)
		if err != nil {
			return err
		}
		weight := 1.0
		if step >= steps && count == 0 {
			weight = 0
		}
		for i := range buffers.Gradient {
			buffers.Gradient[i] = 0
		}
		buffers.Gradient[step] = float32(int(1) << number)
		before := buffers.Value[step]
		time.Sleep(time.Duration(microseconds) * time.Microsecond)
		if result, err = session.Step(ctx, weight); err != nil {
			return err
		}
		fmt.Printf("step %d %d %d %g %g %.6f\n", step, result.View, result.Size, result.Weight, before-buffers.Value[step], now())
	}
	for !result.AllDone {
		if result, err = session.Step(ctx, 0); err != nil {
			return err
		}
	}
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(&buffers.Value[0])), 4*elements)
	fmt.Printf("values %x\n", bytes)
	return nil
}

func run(numbers [6]int) error {
	session, err := dsgd.Init(nil)
	if err != nil {
		return err
	}
	fmt.Println("joined")
	if err := train(session, numbers[0], numbers[1], numbers[2], numbers[3], numbers[5]); err != nil {
		session.Close()
		return err
	}
	return session.Close()
}

func main() {
	var numbers [6]int
	for i := range numbers {
		var err error
		if numbers[i], err = strconv.Atoi(os.Args[1+i]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	var failure *dsgd.Error
	if err := run(numbers); errors.As(err, &failure) {
		fmt.Println("failed", failure.Status, failure.Message)
	} else if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
