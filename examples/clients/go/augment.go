// Have a server augment a trace: go run augment.go http://HOST:PORT TRACE [OUT]
//
// Over HTTP, with Go's own library alone; /openapi.json of the server describes every call. Set AUGMENT_TOKEN if the
// server wants a token. For gRPC: protoc --go_out --go-grpc_out makes a client of proto/augment/v1.
package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// What this program needs of the messages; 64-bit integers are strings in JSON.
type artifact struct{ Name, FileName, Sha256 string }
type job struct {
	Name, State string
	Progress    struct{ Stage string }
	Error       struct{ Reason, Message string }
	Artifacts   []artifact
}
type status struct{ Message string }
type answer struct {
	Upload struct{ Name string }
	Job    job
	Result *answer
	Error  *status
}

var server string

// ask sends a request; the response, which the caller closes.
func ask(verb, path string, body io.Reader) (*http.Response, error) {
	request, err := http.NewRequest(verb, server+path, body)
	if err != nil {
		return nil, err
	}
	if token := os.Getenv("AUGMENT_TOKEN"); token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	if err == nil && response.StatusCode >= 400 {
		defer response.Body.Close()
		var said status
		if json.NewDecoder(response.Body).Decode(&said) != nil || said.Message == "" {
			said.Message = response.Status
		}
		return nil, fmt.Errorf("%s", said.Message)
	}
	return response, err
}

// get is ask for a response that is one message.
func get(verb, path string, body io.Reader) (answer, error) {
	var said answer
	response, err := ask(verb, path, body)
	if err != nil {
		return said, err
	}
	defer response.Body.Close()
	return said, json.NewDecoder(response.Body).Decode(&said)
}

// send uploads a file, of which little is in memory; the upload's name.
func send(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	said, err := get("POST", "/v1/uploads:bytes?fileName="+url.QueryEscape(filepath.Base(path)), file)
	return said.Upload.Name, err
}

// follow watches a job to its end: a line of JSON for each change.
func follow(name string) (job, error) {
	var last job
	response, err := ask("GET", "/v1/"+name+":watch", nil)
	if err != nil {
		return last, err
	}
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			break
		}
		var said answer
		if err == nil {
			err = json.Unmarshal(line, &said)
		}
		if err == nil && said.Error != nil {
			err = fmt.Errorf("%s", said.Error.Message)
		}
		if err != nil {
			return last, err
		}
		last = said.Result.Job
		fmt.Fprintln(os.Stderr, last.State, last.Progress.Stage)
	}
	if last.State != "STATE_SUCCEEDED" {
		return last, fmt.Errorf("%s %s", last.State, last.Error.Message)
	}
	return last, nil
}

// fetch writes an artifact into a folder: under its name once it is whole and what the server says it is.
func fetch(of artifact, folder string) error {
	path := filepath.Join(folder, filepath.Base(of.FileName))
	parts := strings.Split(of.Name, "/")
	for at := range parts {
		parts[at] = url.PathEscape(parts[at])
	}
	response, err := ask("GET", "/v1/"+strings.ReplaceAll(strings.Join(parts, "/"), ":", "%3A")+":download", nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	file, err := os.Create(path + ".part")
	if err != nil {
		return err
	}
	hash := sha256.New()
	_, err = io.Copy(io.MultiWriter(file, hash), response.Body)
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil && fmt.Sprintf("%x", hash.Sum(nil)) != of.Sha256 {
		err = fmt.Errorf("%s arrived damaged", of.FileName)
	}
	if err != nil {
		return err
	}
	fmt.Println(path)
	return os.Rename(path+".part", path)
}

func augment(trace, folder string) error {
	upload, err := send(trace)
	if err != nil {
		return err
	}
	key := make([]byte, 16) // the same request again would return the same job
	if _, err := rand.Read(key); err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{
		"requestId": fmt.Sprintf("%x", key),
		"spec":      map[string]any{"augment": map[string]any{"input": map[string]any{"upload": upload}, "formats": []string{"chrome"}}},
	})
	if err != nil {
		return err
	}
	created, err := get("POST", "/v1/jobs", bytes.NewReader(body))
	if err != nil {
		return err
	}
	done, err := follow(created.Job.Name)
	if err != nil {
		return err
	}
	for _, of := range done.Artifacts {
		if err := fetch(of, folder); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: go run augment.go http://HOST:PORT TRACE [OUT]")
		os.Exit(2)
	}
	server = strings.TrimSuffix(os.Args[1], "/")
	folder := "."
	if len(os.Args) > 3 {
		folder = os.Args[3]
	}
	if err := augment(os.Args[2], folder); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
