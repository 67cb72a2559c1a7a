// Command conformance is the Go worker of tests/conformance: it runs a script of operations and writes what came of them.
// The contract is tests/conformance/README.md.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"dsgd.io/dsgd"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: conformance SCRIPT RESULT")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(script, result string) error {
	text, err := os.ReadFile(script)
	if err != nil {
		return err
	}
	file, err := os.Create(result)
	if err != nil {
		return err
	}
	w := &worker{config: dsgd.NewConfig(), out: bufio.NewWriter(file)}
	for number, line := range strings.Split(string(text), "\n") {
		if err := w.line(number+1, line); err != nil {
			return fmt.Errorf("%s:%d: %s: %w", script, number+1, line, err)
		}
	}
	if err := w.out.Flush(); err != nil {
		return err
	}
	return file.Close()
}

// worker is the state that a script builds up.
type worker struct {
	config     *dsgd.Config
	session    *dsgd.Session
	rank, size int
	replicas   []*dsgd.Replica
	parameters []parameter
	tensors    [][]tensor // by replica, then parameter
	out        *bufio.Writer

	async   int       // lines of a group of operations that are still to be begun
	pending []pending // those begun
}

type parameter struct {
	*dsgd.Parameter
	trained bool
}

type pending struct {
	line int
	op   *dsgd.Op
	done func() string
}

// line runs one line of the script and writes its result, if it has one.
func (w *worker) line(number int, line string) error {
	words := strings.Fields(line)
	if len(words) == 0 || strings.HasPrefix(line, "#") {
		return nil
	}
	if w.async > 0 {
		return w.begin(number, words)
	}
	var result string
	var err error
	if words[0] == "try" {
		result, err = w.try(words[1:])
	} else {
		result, err = w.operation(arguments{words[0], words[1:]})
	}
	if err == nil && result != "" {
		_, err = fmt.Fprintf(w.out, "%d %s\n", number, result)
	}
	return err
}

func (w *worker) try(words []string) (string, error) {
	a := arguments{words[0], words[1:]}
	if a.name == "get" { // without waiting: under a context that has ended, whose error stands for C's wait timeout
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := w.session.GetObject(ended, a.word(0)); err != context.Canceled {
			return "", fmt.Errorf("must find nothing, gave %v", err)
		}
		return fmt.Sprintf("error=%d", dsgd.ErrWaitTimeout), nil
	}
	_, err := w.operation(a)
	failed, is := err.(*dsgd.Error)
	if !is {
		return "", fmt.Errorf("must fail with an error of dsgd, gave %v", err)
	}
	return fmt.Sprintf("error=%d", failed.Status), nil
}

// begin begins one operation of an asynchronous group, and waits for all after the last.
func (w *worker) begin(number int, words []string) error {
	c, err := collectiveOf(arguments{words[0], words[1:]}, w.rank, w.size)
	if err != nil {
		return err
	}
	op, err := c.begin(w.session)
	if err != nil {
		return err
	}
	w.pending = append(w.pending, pending{number, op, c.result})
	w.async--
	if w.async > 0 {
		return nil
	}
	for _, p := range w.pending {
		if err := p.op.Wait(context.Background()); err != nil {
			return err
		}
		if result := p.done(); result != "" {
			fmt.Fprintf(w.out, "%d %s\n", p.line, result)
		}
	}
	w.pending = nil
	return nil
}

// arguments are the words of one operation.
type arguments struct {
	name  string
	words []string
}

func (a arguments) word(i int) string {
	if i >= len(a.words) {
		return ""
	}
	return a.words[i]
}

// rest is the text from word i on.
func (a arguments) rest(i int) string {
	if i >= len(a.words) {
		return ""
	}
	return strings.Join(a.words[i:], " ")
}

func (a arguments) integer(i int) int {
	n, err := strconv.ParseInt(a.word(i), 10, 64)
	if err != nil {
		panic(fmt.Sprintf("word %d of %s: %v", i+1, a.name, err))
	}
	return int(n)
}

func (a arguments) unsigned(i int) uint64 {
	n, err := strconv.ParseUint(a.word(i), 10, 64)
	if err != nil {
		panic(fmt.Sprintf("word %d of %s: %v", i+1, a.name, err))
	}
	return n
}

func (a arguments) number(i int) float64 { return parseNumber(a.word(i)) }

func parseNumber(word string) float64 {
	x, err := strconv.ParseFloat(word, 64)
	if err != nil {
		panic(err)
	}
	return x
}

func (a arguments) list(i int) []string {
	if a.word(i) == "-" {
		return nil
	}
	return strings.Split(a.word(i), ",")
}

func (a arguments) integers(i int) []int {
	numbers := []int{}
	for _, word := range a.list(i) {
		n, err := strconv.Atoi(word)
		if err != nil {
			panic(fmt.Sprintf("word %d of %s: %v", i+1, a.name, err))
		}
		numbers = append(numbers, n)
	}
	return numbers
}

// elementType has the operations whose buffers have elements of one type.
type elementType interface {
	array(w *worker, a arguments, dtype dsgd.DType) (string, error)
	collective(a arguments, rank, size int) (collective, error)
	tensor(r *dsgd.Replica, p parameter, alloc bool) (tensor, error)
}

type of[T dsgd.Element] struct{}

var elements = map[dsgd.DType]elementType{
	dsgd.Float32: of[float32]{}, dsgd.Float64: of[float64]{}, dsgd.Int32: of[int32]{}, dsgd.Int64: of[int64]{},
	dsgd.Uint8: of[uint8]{}, dsgd.Int8: of[int8]{}, dsgd.Uint64: of[uint64]{},
}

func (a arguments) dtype(i int) dsgd.DType {
	for dtype := range elements {
		if dtype.String() == a.word(i) {
			return dtype
		}
	}
	panic("dtype " + a.word(i))
}

func (a arguments) reduction(i int) dsgd.Reduction {
	reductions := map[string]dsgd.Reduction{"sum": dsgd.Sum, "min": dsgd.Min, "max": dsgd.Max, "prod": dsgd.Prod,
		"mean": dsgd.Mean}
	reduction, known := reductions[a.word(i)]
	if !known {
		panic("reduction " + a.word(i))
	}
	return reduction
}
