module loss_worker

go 1.21

require dsgd.io/dsgd v1.0.0

replace dsgd.io/dsgd => ../../../bindings/go
