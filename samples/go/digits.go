// Trains a small network on handwritten digits, together with any number of other workers in any language.
//
// Copy this file to begin a trainer of your own. The code for dsgd is in run; the network (64 inputs, 128 hidden units with
// ReLU, 10 classes, softmax cross-entropy) is above it. Run it by itself or under `dsgd run`:
//
//	digits --data digits.csv --epochs 40
//	dsgd run -n 4 -- digits --data digits.csv --epochs 40
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"time"

	"dsgd.io/dsgd"
)

const inputs, hidden, classes = 64, 128, 10

// ---- Data: every fifth row is for the test, the others for training.

type data struct {
	pixels [][inputs]float32
	labels []int
}

func read(path string) (train, test data, err error) {
	file, err := os.Open(path)
	if err != nil {
		return train, test, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for row := 0; lines.Scan(); row++ {
		words := strings.Split(lines.Text(), ",")
		var pixels [inputs]float32
		numbers := make([]int, inputs+1)
		for i := range numbers {
			if numbers[i], err = strconv.Atoi(words[i]); err != nil {
				return train, test, fmt.Errorf("%s:%d: %w", path, row+1, err)
			}
		}
		for i := range pixels {
			pixels[i] = float32(numbers[i]) / 16
		}
		set := &train
		if row%5 == 0 {
			set = &test
		}
		set.pixels = append(set.pixels, pixels)
		set.labels = append(set.labels, numbers[inputs])
	}
	return train, test, lines.Err()
}

// ---- Network. Values and gradients lie in buffers of dsgd.

type tensors struct{ w1, b1, w2, b2 []float32 }

func initialise(value tensors, seed int64) { // uniform, He et al. 2015
	random := rand.New(rand.NewSource(seed))
	bound1, bound2 := math.Sqrt(6.0/inputs), math.Sqrt(6.0/hidden)
	for i := range value.w1 {
		value.w1[i] = float32(bound1 * (2*random.Float64() - 1))
	}
	for i := range value.w2 {
		value.w2[i] = float32(bound2 * (2*random.Float64() - 1))
	}
}

func forward(value tensors, pixels *[inputs]float32) (activation [hidden]float32, probability [classes]float32) {
	copy(activation[:], value.b1)
	copy(probability[:], value.b2)
	for i, pixel := range pixels {
		if pixel == 0 {
			continue
		}
		for j, w := range value.w1[i*hidden : (i+1)*hidden] {
			activation[j] += pixel * w
		}
	}
	for j := range activation {
		activation[j] = max32(activation[j], 0)
		for c, w := range value.w2[j*classes : (j+1)*classes] {
			probability[c] += activation[j] * w
		}
	}
	largest, sum := probability[0], float32(0)
	for _, score := range probability {
		largest = max32(largest, score)
	}
	for c := range probability {
		probability[c] = float32(math.Exp(float64(probability[c] - largest)))
		sum += probability[c]
	}
	for c := range probability {
		probability[c] /= sum
	}
	return activation, probability
}

func max32(a, b float32) float32 {
	if a > b {
		return a
	}
	return b
}

// backward writes the mean gradient of a batch and returns the sum of the losses.
func backward(value, gradient tensors, train data, rows []int64) (loss float64) {
	for _, slope := range [][]float32{gradient.w1, gradient.b1, gradient.w2, gradient.b2} {
		for i := range slope {
			slope[i] = 0
		}
	}
	for _, row := range rows {
		pixels, label := &train.pixels[row], train.labels[row]
		activation, err := forward(value, pixels)
		loss -= math.Log(math.Max(float64(err[label]), 1e-30))
		err[label]--
		for c := range err {
			err[c] /= float32(len(rows))
			gradient.b2[c] += err[c]
		}
		for j, a := range activation {
			if a == 0 {
				continue
			}
			var back float32
			for c, e := range err {
				gradient.w2[j*classes+c] += a * e
				back += value.w2[j*classes+c] * e
			}
			gradient.b1[j] += back
			for i, pixel := range pixels {
				gradient.w1[i*hidden+j] += pixel * back
			}
		}
	}
	return loss
}

func accuracy(value tensors, test data) float64 {
	right := 0
	for n := range test.labels {
		_, probability := forward(value, &test.pixels[n])
		best := 0
		for c := range probability {
			if probability[c] > probability[best] {
				best = c
			}
		}
		if best == test.labels[n] {
			right++
		}
	}
	return 100 * float64(right) / float64(len(test.labels))
}

// ---- dsgd

func run() error {
	path := flag.String("data", "digits.csv", "the images")
	epochs := flag.Int("epochs", 40, "passes over the training images")
	batch := flag.Int("batch", 16, "images per step")
	seed := flag.Int64("seed", 1, "of initial values and shuffling")
	optimizer := flag.String("optimizer", "sgd", "name")
	options := flag.String("optimizer-options", "lr=0.1 momentum=0.9", "key=value words")
	folder := flag.String("checkpoint", "", "folder to save in, and whose newest checkpoint to go on from")
	flag.Parse()
	train, test, err := read(*path)
	if err != nil {
		return err
	}

	config := dsgd.NewConfig() // DSGD_* variables, for example from `dsgd run`, say how to join
	if *folder != "" {         // dsgd saves by itself; DSGD_CHECKPOINT_INTERVAL changes how often
		if err := config.Set("checkpoint_dir", *folder); err != nil {
			return err
		}
		if interval, _ := config.Get("checkpoint_interval"); interval == "0" {
			if err := config.Set("checkpoint_interval", "100"); err != nil {
				return err
			}
		}
	}
	// An error aborts the job.
	return dsgd.Run(context.Background(), config, func(session *dsgd.Session) error {
		return fit(session, train, test, *epochs, *batch, *seed, *optimizer, *options, *folder != "")
	})
}

func fit(session *dsgd.Session, train, test data, epochs, batch int, seed int64, optimizer, options string, resume bool) error {
	// The model: four tensors, one copy of them on this worker's CPU.
	replica, err := session.AddReplica("cpu")
	if err != nil {
		return err
	}
	var value, gradient tensors
	for _, tensor := range []struct {
		name            string
		shape           []int
		value, gradient *[]float32
	}{
		{"hidden.weight", []int{inputs, hidden}, &value.w1, &gradient.w1},
		{"hidden.bias", []int{hidden}, &value.b1, &gradient.b1},
		{"output.weight", []int{hidden, classes}, &value.w2, &gradient.w2},
		{"output.bias", []int{classes}, &value.b2, &gradient.b2},
	} {
		parameter, err := session.AddParameter(tensor.name, dsgd.Float32, tensor.shape)
		if err != nil {
			return err
		}
		buffers, err := dsgd.Alloc[float32](replica, parameter)
		if err != nil {
			return err
		}
		*tensor.value, *tensor.gradient = buffers.Value, buffers.Gradient
	}
	if err := session.SetOptimizer(optimizer, options); err != nil {
		return err
	}
	initialise(value, seed)
	if err := session.Start(context.Background()); err != nil { // from here on all workers hold rank 0's values
		return err
	}

	shard, err := session.NewShard(uint64(len(train.labels)), uint64(seed))
	if err != nil {
		return err
	}
	rows := make([]int64, batch)
	if resume { // go on from the newest checkpoint, also with another number of workers
		err := session.LoadCheckpoint(context.Background(), "")
		for errors.Is(err, dsgd.ErrViewChanged) { // a worker has joined or was lost meanwhile: all load again
			err = session.LoadCheckpoint(context.Background(), "")
		}
		if err != nil && !errors.Is(err, dsgd.ErrNotFound) {
			return err
		}
	}
	first := max(int(shard.Epoch()), 1) // of the checkpoint, or of a running job that this worker has joined
	for epoch := first; epoch <= epochs; epoch++ {
		if shard.Epoch() != uint64(epoch) { // else it goes on within the epoch
			if err := shard.SetEpoch(uint64(epoch)); err != nil {
				return err
			}
		}
		began, loss := time.Now(), 0.0
		for allDone := false; !allDone; { // a worker that has no data left goes on with weight 0 until nobody has
			count, err := shard.Next(rows)
			if err != nil {
				return err
			}
			if count > 0 {
				loss += backward(value, gradient, train, rows[:count])
			}
			result, err := session.Step(context.Background(), float64(count))
			if err != nil {
				return err
			}
			allDone = result.AllDone
		}
		samples := float64(shard.Size())
		fmt.Printf("{\"epoch\": %d, \"loss\": %.6f, \"accuracy\": %.4f, \"samples_per_second\": %.1f}\n", epoch, loss/samples,
			accuracy(value, test), samples/time.Since(began).Seconds())
	}

	digest, err := session.Digest()
	if err != nil {
		return err
	}
	fmt.Printf("{\"done\": true, \"rank\": %d, \"language\": \"go\", \"accuracy\": %.4f, \"digest\": \"%016x\"}\n",
		session.Rank(), accuracy(value, test), digest)
	return nil
}

func main() {
	if err := run(); err != nil {
		log.Fatal("digits: ", err)
	}
}
