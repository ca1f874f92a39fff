//! Checks `[store]`.

use super::Check;
use tollgate_limiter::{StoreSettings, StoreUrl, store::redis::url::RedisServers};

use crate::{error::Diagnostic, file};

impl Check<'_, '_> {
    pub(super) fn store(&mut self, store: file::StoreTable) -> StoreSettings {
        let prefix = store.key_prefix.get_ref();
        if prefix.0.is_empty() || !prefix.0.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b))
        {
            let fault = Diagnostic::error(format!("`{}` is not a valid key prefix", prefix.0));
            self.fault(
                fault.at(&store.key_prefix.span(), "").help("use letters, digits and `.`, `_`, `:` and `-`"),
            );
        }
        self.warn_of_lone_user(&store.url.0);
        if let (StoreUrl::Memory, Some(place)) = (&store.url.0, self.document.place_of("store", "instances"))
            && store.instances.0 != 1
        {
            let fault = Diagnostic::warning(
                "`instances` has no effect: without Redis, each gateway admits the whole rate",
            );
            self.fault(fault.at(&place, "").help(
                "name the Redis that they share, url = \"redis://HOST:6379\", or leave `instances` out",
            ));
        }
        let has_replicas =
            matches!(&store.url.0, StoreUrl::Redis(url) if !matches!(url.servers, RedisServers::Cluster(_)));
        // A URL that can't be read may be one of Sentinels.
        if *store.replicated.get_ref() && !has_replicas && !self.has_errors() {
            let fault =
                Diagnostic::warning("`replicated` is for a Redis that stands alone, or behind Sentinels");
            let remedy = match &store.url.0 {
                StoreUrl::Redis(_) => "leave it out: a Cluster's planned failover loses nothing without it",
                StoreUrl::Memory => "name the Redis, url = \"redis://HOST:6379\", or leave it out",
            };
            self.fault(fault.at(&store.replicated.span(), "").help(remedy));
        }
        let uses_tls = matches!(&store.url.0, StoreUrl::Redis(url) if url.tls);
        let unused = Diagnostic::warning("`tls` has no effect: the store's URL doesn't ask for TLS")
            .help("begin the URL with rediss: \"rediss://HOST:6379\"");
        let tls = self.client_tls(store.tls, uses_tls, "the store", unused);
        StoreSettings {
            url: store.url.0,
            tls,
            timeout: store.timeout.0,
            instances: store.instances.0,
            replicated: *store.replicated.get_ref(),
            max_memory: self.size_of_at_least(&store.max_memory, 1 << 20, "1MiB"),
            key_prefix: store.key_prefix.into_inner().0,
        }
    }

    /// Warns if a URL has a user and no password: what is alone before the `@` is the user.
    fn warn_of_lone_user(&mut self, url: &StoreUrl) {
        let StoreUrl::Redis(url) = url else { return };
        if url.login.user.is_none() || url.login.password.is_some() {
            return;
        }
        let fault = Diagnostic::warning("this URL has a user, and no password")
            .help("a password alone goes after a colon: \"redis://:${REDIS_PASSWORD}@HOST\"");
        let place = self.document.place_of("store", "url");
        self.fault(match place {
            Some(place) => fault.at(&place, ""),
            None => fault,
        });
    }
}
