// Checks the manifests in docs/behind-envoy.md and contrib/kubernetes against the schemas of Envoy Gateway, Istio, Contour and the Gateway API, which are
// fetched as Go modules, and of kgateway (kgateway.yaml). Unknown fields are errors, too.
//
//	go run . ../../docs/behind-envoy.md ../../contrib/kubernetes/{envoy-gateway,istio}.yaml
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"
)

// crds are the modules with the definitions of kinds, and the files in them.
var crds = map[string]string{
	"github.com/envoyproxy/gateway@v1.9.1":      "charts/gateway-helm/charts/crds/crds/generated/*.yaml",
	"github.com/projectcontour/contour@v1.33.8": "examples/contour/01-crds.yaml",
	"istio.io/api@v1.31.1":                      "kubernetes/customresourcedefinitions.gen.yaml",
	"sigs.k8s.io/gateway-api@v1.4.0":            "config/crd/standard/*.yaml",
}

// unchecked are the kinds that no Go module has a definition of, with the reason.
var unchecked = map[string]string{
	"gateway.envoyproxy.io/v1alpha1 EnvoyGateway": "a file, not an object of the cluster",
}

// object is anything that YAML can say.
type object = map[string]any

// folder fetches a module and returns where it is.
func folder(module string) string {
	output, err := exec.Command("go", "mod", "download", "-json", module).Output()
	if err != nil {
		log.Fatalf("can't fetch %s: %v", module, err)
	}
	var found struct{ Dir string }
	if err := json.Unmarshal(output, &found); err != nil {
		log.Fatal(err)
	}
	return found.Dir
}

// documents returns the YAML documents of a text.
func documents(text string) []object {
	var found []object
	for _, document := range strings.Split("\n"+text, "\n---") {
		var read object
		if err := yaml.Unmarshal([]byte(document), &read); err != nil {
			log.Fatalf("%v in\n%s", err, document)
		}
		if read != nil {
			found = append(found, read)
		}
	}
	return found
}

// closed refuses fields that a schema doesn't name.
func closed(schema any) {
	switch schema := schema.(type) {
	case object:
		_, isOpen := schema["x-kubernetes-preserve-unknown-fields"]
		if _, has := schema["properties"].(object); has && !isOpen && schema["additionalProperties"] == nil && schema["type"] == "object" {
			schema["additionalProperties"] = false
		}
		if schema["x-kubernetes-int-or-string"] == true {
			delete(schema, "type")
		}
		// Formats of Kubernetes, which this validator knows otherwise.
		delete(schema, "format")
		for _, value := range schema {
			closed(value)
		}
	case []any:
		for _, value := range schema {
			closed(value)
		}
	}
}

// schemas returns the schema of each kind of a definition.
func schemas(definition object, all map[string]any) {
	if definition["kind"] != "CustomResourceDefinition" {
		return
	}
	spec := definition["spec"].(object)
	kind := spec["names"].(object)["kind"]
	for _, version := range spec["versions"].([]any) {
		version := version.(object)
		schema := version["schema"].(object)["openAPIV3Schema"].(object)
		if properties, has := schema["properties"].(object); has {
			for _, name := range []string{"apiVersion", "kind"} {
				properties[name] = object{"type": "string"}
			}
			properties["metadata"] = object{"type": "object"}
		}
		closed(schema)
		all[fmt.Sprintf("%s/%s %s", spec["group"], version["name"], kind)] = schema
	}
}

// blocks returns the YAML of files: of a Markdown page each block, of others all of it.
func blocks(names []string) []string {
	var found []string
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			log.Fatal(err)
		}
		if !strings.HasSuffix(name, ".md") {
			found = append(found, string(text))
			continue
		}
		for _, block := range strings.Split(string(text), "```yaml\n")[1:] {
			block, _, _ := strings.Cut(block, "\n```")
			found = append(found, block)
		}
	}
	return found
}

func main() {
	definitions := []string{"kgateway.yaml"}
	for module, pattern := range crds {
		files, err := filepath.Glob(filepath.Join(folder(module), pattern))
		if err != nil || len(files) == 0 {
			log.Fatalf("%s has no %s: %v", module, pattern, err)
		}
		definitions = append(definitions, files...)
	}
	all := map[string]any{}
	for _, file := range definitions {
		text, err := os.ReadFile(file)
		if err != nil {
			log.Fatal(err)
		}
		for _, definition := range documents(string(text)) {
			schemas(definition, all)
		}
	}
	checked, faulty := 0, false
	for _, text := range blocks(os.Args[1:]) {
		for _, manifest := range documents(text) {
			if manifest["kind"] == nil {
				continue
			}
			name := fmt.Sprintf("%v %v", manifest["apiVersion"], manifest["kind"])
			if reason, is := unchecked[name]; is {
				fmt.Printf("%s isn't checked: %s\n", name, reason)
				continue
			}
			schema, has := all[name]
			if !has {
				log.Fatalf("no schema of %s", name)
			}
			if err := check(name, schema, manifest); err != nil {
				fmt.Printf("%s: %v\n", name, err)
				faulty = true
			}
			checked++
		}
	}
	fmt.Printf("%d manifests are checked\n", checked)
	if faulty || checked < 8 {
		os.Exit(1)
	}
}

// check validates a manifest, and proves that the schema would find a fault.
func check(name string, schema any, manifest object) error {
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft4)
	if err := compiler.AddResource("schema.json", plain(schema)); err != nil {
		return err
	}
	compiled, err := compiler.Compile("schema.json")
	if err != nil {
		return err
	}
	if err := compiled.Validate(plain(manifest)); err != nil {
		return err
	}
	wrong := plain(manifest).(object)
	wrong["specification"] = true
	if compiled.Validate(wrong) == nil {
		return fmt.Errorf("the schema of %s accepts anything", name)
	}
	return nil
}

// plain returns a value as the validator wants it.
func plain(value any) any {
	text, err := json.Marshal(value)
	if err != nil {
		log.Fatal(err)
	}
	read, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		log.Fatal(err)
	}
	return read
}
