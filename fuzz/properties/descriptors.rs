//! Messages of the rate limit service. A module of that service, so that it can use private items.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, LazyLock},
};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::StreamBody;
use prost::Message;

use super::{
    super::grpc::{self, Status},
    check, drop_replaced, json,
    messages::RateLimitRequest,
    metadata, stated_rate, view,
};
use crate::{config::Config, gateway::plan::descriptors::DescriptorPlanner, rules::Rule};

const RULES: &str = "[decisions]\nlisten = \"127.0.0.1:1\"\n\
    [[descriptors]]\ndomain = \"d\"\nmatch = { k = \"*\" }\nlimits = [\"l\"]\n\
    [limits.l]\nkey = \"descriptor:k\"\nrate = \"1/s\"\n";

static PLANNER: LazyLock<DescriptorPlanner> = LazyLock::new(|| {
    let (config, _) =
        Config::parse("gateway.toml", RULES, &|_| None).unwrap_or_else(|faults| panic!("{faults}"));
    let rules = config.limits.iter().map(|(name, limit)| (name.clone(), Arc::new(Rule::new(limit, None))));
    DescriptorPlanner::new(&config, &rules.collect::<BTreeMap<_, _>>())
});

/// A call is read alike however it is split, and any call that can be read is checked and planned.
pub fn descriptors(bytes: &[u8]) {
    let whole = read(bytes, bytes.len().max(1));
    let split = read(bytes, 3);
    assert_eq!(whole.as_ref().map_err(|status| status.code), split.as_ref().map_err(|status| status.code));
    if let Ok(request) = &whole {
        assert_eq!(read(&grpc::framed(request), usize::MAX).as_ref(), Ok(request));
    }
    let read = [whole.ok(), RateLimitRequest::decode(bytes).ok(), json::read(bytes).ok()];
    read.iter().flatten().for_each(plan);
}

/// Reads a call whose bytes arrive in pieces of this size.
fn read(bytes: &[u8], size: usize) -> Result<RateLimitRequest, Status> {
    let pieces =
        bytes.chunks(size).map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece))));
    let body = StreamBody::new(futures_util::stream::iter(pieces.collect::<Vec<_>>()));
    futures_util::FutureExt::now_or_never(grpc::read(body)).expect("nothing to wait for")
}

fn plan(request: &RateLimitRequest) {
    if check(request).is_err() {
        return;
    }
    let plans = request.descriptors.iter().map(|descriptor| {
        assert!(descriptor.limit.and_then(stated_rate).is_none_or(|rate| rate.window_us >= 1_000_000));
        PLANNER.of_domain(&request.domain).plan(&view(request, descriptor))
    });
    let mut plans: Vec<_> = plans.collect();
    drop_replaced(&mut plans);
    assert!(metadata::of(Some(request), &[]).is_some());
}
