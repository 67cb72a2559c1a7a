package main

import (
	"context"
	"fmt"
	"math"

	"dsgd.io/dsgd"
)

// operation runs one operation of a script; the text is its line in the result without the number, "" for none.
func (w *worker) operation(a arguments) (string, error) {
	switch a.name {
	case "replica_weight", "absent", "stop", "put", "put_array": // of one worker, whose rank is the first argument
		if w.rank != a.integer(0) {
			return "", nil
		}
	}
	s := w.session
	ctx := context.Background()
	switch a.name {
	case "config":
		return "", w.config.Set(a.word(0), a.rest(1))
	case "init":
		session, err := dsgd.Init(w.config)
		if err != nil {
			return "", err
		}
		w.session, w.rank, w.size = session, session.Rank(), session.Size()
		return fmt.Sprintf("rank=%d size=%d", w.rank, w.size), nil
	case "replica":
		replica, err := s.AddReplica("cpu")
		if err == nil {
			w.replicas = append(w.replicas, replica)
		}
		return "", err
	case "parameter":
		return "", w.addParameter(a)
	case "parameter_set":
		return "", w.parameterNamed(a.word(0)).Set(a.rest(1))
	case "optimizer":
		return "", s.SetOptimizer(a.word(0), a.rest(1))
	case "strategy":
		return "", s.SetStrategy(context.Background(), a.word(0), a.rest(1))
	case "alloc", "bind":
		return "", w.giveBuffers(a.name == "alloc")
	case "fill":
		w.eachTensor(func(t tensor, replica, index int) { t.fillValue(a.integer(0), 1000000+w.salt(replica, index)) })
		return "", nil
	case "start":
		return "", s.Start(context.Background())
	case "rate":
		return "", s.SetLearningRate(a.number(0))
	case "replica_weight":
		return "", w.replicas[a.integer(1)].SetWeight(a.number(2))
	case "absent":
		return "", w.absent(a.word(1))
	case "stop":
		return "", s.RequestStop()
	case "step":
		w.fillGradients(a.integer(0))
		result, err := s.Step(ctx, parseNumber(a.list(1)[w.rank]))
		return stepLine(result), err
	case "overlap":
		return w.overlap(a.integer(0), parseNumber(a.list(1)[w.rank]))
	case "values":
		h := newDigest()
		w.eachTensor(func(t tensor, _, _ int) { t.addValue(h) })
		return h.line(), nil
	case "gradients":
		h := newDigest()
		w.eachTensor(func(t tensor, _, index int) {
			if w.parameters[index].trained {
				t.addGradient(h)
			}
		})
		return h.line(), nil
	case "digest":
		digest, err := s.Digest()
		return fmt.Sprintf("digest=%016x", digest), err
	case "allreduce", "broadcast", "allgather", "reduce_scatter", "barrier":
		c, err := collectiveOf(a, w.rank, w.size)
		if err != nil {
			return "", err
		}
		if err := c.run(ctx, s); err != nil {
			return "", err
		}
		return c.result(), nil
	case "async":
		w.async = a.integer(0)
		return "", nil
	case "put":
		return "", s.PutObject(context.Background(), a.word(1), pattern[uint8](a.integer(2), a.integer(3), 0))
	case "get":
		data, err := s.GetObject(ctx, a.word(0))
		h := newDigest()
		h.add(data)
		return fmt.Sprintf("nbytes=%d %s", len(data), h.line()), err
	case "put_array":
		return elements[a.dtype(2)].array(w, a, a.dtype(2))
	case "get_array":
		return elements[a.dtype(1)].array(w, a, a.dtype(1))
	case "shard":
		return w.shard(a)
	case "close":
		return "", s.Close()
	}
	return "", fmt.Errorf("unknown operation '%s'", a.name)
}

func (w *worker) addParameter(a arguments) error {
	trained := a.word(3) == "trained"
	var flags []dsgd.ParameterFlag
	if !trained {
		flags = append(flags, dsgd.Untrained)
	}
	p, err := w.session.AddParameter(a.word(0), a.dtype(1), a.integers(2), flags...)
	if err == nil {
		w.parameters = append(w.parameters, parameter{p, trained})
	}
	return err
}

func (w *worker) parameterNamed(name string) *dsgd.Parameter {
	for _, p := range w.parameters {
		if p.Name() == name {
			return p.Parameter
		}
	}
	return nil
}

func (w *worker) giveBuffers(alloc bool) error {
	w.tensors = nil
	for _, r := range w.replicas {
		var row []tensor
		for _, p := range w.parameters {
			t, err := elements[p.DType()].tensor(r, p, alloc)
			if err != nil {
				return err
			}
			row = append(row, t)
		}
		w.tensors = append(w.tensors, row)
	}
	return nil
}

func (w *worker) eachTensor(do func(t tensor, replica, index int)) {
	for replica, row := range w.tensors {
		for index, t := range row {
			do(t, replica, index)
		}
	}
}

func (w *worker) salt(replica, index int) int { return w.rank*10000 + replica*100 + index }

func (w *worker) fillGradients(seed int) {
	w.eachTensor(func(t tensor, replica, index int) {
		if w.parameters[index].trained {
			t.fillGradient(seed, w.salt(replica, index))
		}
	})
}

func (w *worker) absent(name string) error {
	for _, r := range w.replicas {
		if err := r.GradientAbsent(w.parameterNamed(name)); err != nil {
			return err
		}
	}
	return nil
}

func (w *worker) overlap(seed int, weight float64) (string, error) {
	op, err := w.session.StepBegin(weight)
	if err != nil {
		return "", err
	}
	for replica := len(w.replicas) - 1; replica >= 0; replica-- {
		for index := len(w.parameters) - 1; index >= 0; index-- {
			if !w.parameters[index].trained {
				continue
			}
			w.tensors[replica][index].fillGradient(seed, w.salt(replica, index))
			if err := w.replicas[replica].GradientReady(w.parameters[index].Parameter); err != nil {
				return "", err
			}
		}
	}
	if err := op.Wait(context.Background()); err != nil {
		return "", err
	}
	result, err := op.StepResult()
	return stepLine(result), err
}

func stepLine(r dsgd.StepResult) string {
	bit := map[bool]int{true: 1}
	return fmt.Sprintf("step=%d size=%d applied=%d all_done=%d stop=%d weight=%016x", r.Step, r.Size, bit[r.Applied],
		bit[r.AllDone], bit[r.Stop], math.Float64bits(r.Weight))
}

func (w *worker) shard(a arguments) (string, error) {
	var flags []dsgd.ShardFlag
	if flag := a.integer(2); flag != 0 {
		flags = append(flags, dsgd.ShardFlag(flag))
	}
	shard, err := w.session.NewShard(a.unsigned(0), a.unsigned(1), flags...)
	if err != nil {
		return "", err
	}
	if err := shard.SetEpoch(a.unsigned(3)); err != nil {
		return "", err
	}
	h := newDigest()
	batch := make([]int64, a.integer(4))
	for {
		n, err := shard.Next(batch)
		if err != nil {
			return "", err
		}
		if n == 0 {
			return fmt.Sprintf("size=%d %s", shard.Size(), h.line()), nil
		}
		addAll(h, batch[:n])
	}
}
