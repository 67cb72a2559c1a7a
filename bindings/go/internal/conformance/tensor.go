package main

import (
	"encoding/binary"
	"fmt"
	"hash"
	"hash/fnv"

	"dsgd.io/dsgd"
)

// tensor is the buffers of one parameter in one replica.
type tensor interface {
	fillValue(seed, salt int)
	fillGradient(seed, salt int)
	addValue(to digest)
	addGradient(to digest)
}

type buffers[T dsgd.Element] struct {
	*dsgd.Buffers[T] // from dsgd, or Go's own
}

func (b buffers[T]) fillValue(seed, salt int) { copy(b.Value, pattern[T](len(b.Value), seed, salt)) }
func (b buffers[T]) fillGradient(seed, salt int) {
	copy(b.Gradient, pattern[T](len(b.Gradient), seed, salt))
}
func (b buffers[T]) addValue(to digest)    { addAll(to, b.Value) }
func (b buffers[T]) addGradient(to digest) { addAll(to, b.Gradient) }

func (of[T]) tensor(r *dsgd.Replica, p parameter, alloc bool) (tensor, error) {
	if alloc {
		b, err := dsgd.Alloc[T](r, p.Parameter)
		return buffers[T]{b}, err
	}
	n := 1
	for _, dimension := range p.Shape() {
		n *= dimension
	}
	b := buffers[T]{&dsgd.Buffers[T]{Value: make([]T, n)}}
	if p.trained {
		b.Gradient = make([]T, n)
	}
	return b, dsgd.Bind(r, p.Parameter, b.Value, b.Gradient)
}

// pattern is the first n elements of the pattern of (seed, salt).
func pattern[T dsgd.Element](n, seed, salt int) []T {
	unsigned := T(0)-1 > 0
	data := make([]T, n)
	for i := range data {
		x := uint64(seed)*1000003 + uint64(salt) + uint64(i)*0x9E3779B97F4A7C15
		x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
		x = (x ^ (x >> 27)) * 0x94D049BB133111EB
		x ^= x >> 31
		element := int64((x >> 33) % 17)
		if !unsigned {
			element -= 8
		}
		data[i] = T(element)
	}
	return data
}

// digest is FNV-1a over the little-endian bytes of elements.
type digest struct{ hash.Hash64 }

func newDigest() digest { return digest{fnv.New64a()} }

func (d digest) add(bytes []byte) { _, _ = d.Write(bytes) }

func (d digest) line() string { return fmt.Sprintf("digest=%016x", d.Sum64()) }

func addAll[T dsgd.Element](d digest, data []T) {
	_ = binary.Write(d, binary.LittleEndian, data) // a hash cannot fail to take bytes
}
