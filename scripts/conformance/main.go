// What scripts/conformance.sh needs beside the suite: a proxy before a mirror, and the comparison of two runs.
package main

import (
	"encoding/xml"
	"fmt"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"strings"
)

func main() {
	log.SetFlags(0)
	switch {
	case len(os.Args) == 5 && os.Args[1] == "proxy":
		log.Fatal(proxy(os.Args[2], os.Args[3], os.Args[4]))
	case len(os.Args) == 5 && os.Args[1] == "compare":
		compare(os.Args[2], os.Args[3], regexp.MustCompile(os.Args[4]))
	default:
		log.Fatal("usage: proxy ADDRESS MIRROR REGISTRY | compare DIRECT MIRRORED MAY-DIFFER")
	}
}

// proxy sends pulls to a mirror, which takes nothing else, and all other requests to the registry.
func proxy(address, mirror, registry string) error {
	pulls, rest := to(mirror), to(registry)
	return http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		if reads && !strings.Contains(r.URL.Path, "/blobs/uploads") {
			pulls.ServeHTTP(w, r)
		} else {
			rest.ServeHTTP(w, r)
		}
	}))
}

func to(address string) *httputil.ReverseProxy {
	target, err := url.Parse(address)
	if err != nil {
		log.Fatal(err)
	}
	return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host
	}}
}

// compare fails if more tests of a name passed directly than through the mirror, unless the name may differ.
func compare(direct, mirrored string, mayDiffer *regexp.Regexp) {
	before, after := read(direct), read(mirrored)
	all, passed, worse, better, known := 0, 0, 0, 0, 0
	for name, tests := range before {
		all += tests.all
		passed += tests.passed
		lost := tests.passed - after[name].passed
		switch {
		case lost < 0:
			better -= lost
		case mayDiffer.MatchString(name):
			known += lost
		case lost > 0:
			worse += lost
			fmt.Printf("worse through the mirror: %s: %d of %d\n", name, lost, tests.all)
		}
	}
	fmt.Printf("%d of %d tests pass directly; through the mirror %d are worse, %d where that is known, %d better\n",
		passed, all, worse, known, better)
	if passed == 0 || worse > 0 {
		os.Exit(1)
	}
}

// tests are those of one name. Their order is another one in each run.
type tests struct{ all, passed int }

// Digests and names of a run, which the next one has otherwise.
var ofRun = regexp.MustCompile(`[0-9a-f]{16,}`)

// read returns the tests by their name.
func read(path string) map[string]tests {
	var suites struct {
		Suites []struct {
			Cases []struct {
				Name   string `xml:"name,attr"`
				Status string `xml:"status,attr"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	text, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	if err := xml.Unmarshal(text, &suites); err != nil {
		log.Fatalf("%s: %v", path, err)
	}
	found := map[string]tests{}
	for _, suite := range suites.Suites {
		for _, one := range suite.Cases {
			name := ofRun.ReplaceAllString(one.Name, "#")
			these := found[name]
			these.all++
			if one.Status == "passed" {
				these.passed++
			}
			found[name] = these
		}
	}
	return found
}
