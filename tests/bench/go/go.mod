module bench

go 1.21

require dsgd.io/dsgd v1.0.0

// The tree's own module.
replace dsgd.io/dsgd => ../../../bindings/go
