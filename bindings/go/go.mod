module dsgd.io/dsgd

go 1.21
