module digits

go 1.21

require dsgd.io/dsgd v1.0.0

// The tree's own module. In a copy of this folder elsewhere, give the path of bindings/go in your clone of dsgd instead,
// absolute or from the copy: `go mod edit -replace=dsgd.io/dsgd=PATH/bindings/go`. Leave it out where it is published.
replace dsgd.io/dsgd => ../../bindings/go
