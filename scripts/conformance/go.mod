module conformance

go 1.21
