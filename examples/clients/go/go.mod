module augment-example

go 1.19
