// Serves rules to Tollgate by xDS with go-control-plane, as Envoy Gateway does, and checks what it acknowledges.
//
// Prints the address that it listens on, then obeys a line at a time: "set VERSION PERMITS" offers a limit of PERMITS an hour
// for the descriptor k in the domain d, "wrong VERSION" rules that are wrong. It prints "ack VERSION" or "nack VERSION" for
// each verdict.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net"
	"os"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
)

const node = "interop"

// offer returns the rules of a version.
func offer(version string, permits uint32, unit ratelimit.RateLimitUnit) (*cache.Snapshot, error) {
	rules := &ratelimit.RateLimitConfig{
		Name:   "of-d",
		Domain: "d",
		Descriptors: []*ratelimit.RateLimitDescriptor{{
			Key:       "k",
			RateLimit: &ratelimit.RateLimitPolicy{Unit: unit, RequestsPerUnit: permits},
		}},
	}
	return cache.NewSnapshot(version, map[resource.Type][]types.Resource{resource.RateLimitConfigType: {rules}})
}

func main() {
	snapshots := cache.NewSnapshotCache(true, cache.IDHash{}, nil)
	verdicts := server.CallbackFuncs{
		StreamRequestFunc: func(_ int64, request *discovery.DiscoveryRequest) error {
			if request.GetResponseNonce() == "" {
				fmt.Printf("begin %s %s\n", request.GetNode().GetId(), request.GetVersionInfo())
			} else if request.GetErrorDetail() != nil {
				fmt.Printf("nack %s %s\n", request.GetVersionInfo(), request.GetErrorDetail().GetMessage()[:5])
			} else {
				fmt.Printf("ack %s\n", request.GetVersionInfo())
			}
			return nil
		},
	}
	address := "127.0.0.1:0"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	service := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(service, server.NewServer(context.Background(), snapshots, verdicts))
	go func() { log.Fatal(service.Serve(listener)) }()
	fmt.Println(listener.Addr())

	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var act, version string
		var permits uint32
		_, _ = fmt.Sscan(lines.Text(), &act, &version, &permits)
		unit := ratelimit.RateLimitUnit_HOUR
		if act == "wrong" {
			unit = ratelimit.RateLimitUnit_UNKNOWN
		}
		snapshot, err := offer(version, permits, unit)
		if err == nil {
			err = snapshots.SetSnapshot(context.Background(), node, snapshot)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
}
