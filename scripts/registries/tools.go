//go:build tools

// Names the program that scripts/registries.sh builds, so that go.mod and go.sum hold its versions.
package tools

import _ "github.com/olareg/olareg/cmd/olareg"
