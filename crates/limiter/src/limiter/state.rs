//! The state of a limiter, for operators: health, memory, metrics.

use std::sync::Arc;

use crate::{
    StoreUrl,
    metrics::Page,
    store::{NodeState, Store, StoreError},
};

use super::Limiter;

impl Limiter {
    /// Returns true if the store can be asked, as far as is known. If not, each limit's failure policy decides.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::Limiter;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// assert!(limiter.store_answers());
    /// # Ok(())
    /// # }
    /// ```
    pub fn store_answers(&self) -> bool {
        self.store.answers()
    }

    /// Returns true if limits aren't applied exactly: the store can't be asked, or the memory for keys is used up.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::Limiter;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// assert!(!limiter.is_degraded());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_degraded(&self) -> bool {
        !self.store_answers() || !self.counting_by_network().is_empty()
    }

    /// Returns the state of each server of the store. There is none if it counts in this process.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::Limiter;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// assert!(limiter.store_nodes().is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn store_nodes(&self) -> Vec<NodeState> {
        self.store.nodes()
    }

    /// Returns the number of decisions that the store couldn't give.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::Limiter;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// assert_eq!(limiter.store_failures(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn store_failures(&self) -> u64 {
        self.failures.iter().map(|(_, count)| count).sum()
    }

    /// Returns the bytes that the counts in this process take, and the most that they may take.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::Limiter;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let (used, most) = limiter.local_bytes();
    /// assert!(used < most);
    /// # Ok(())
    /// # }
    /// ```
    pub fn local_bytes(&self) -> (usize, usize) {
        match &*self.local {
            Store::Memory(store) => (store.bytes(), store.max_bytes()),
            Store::Redis(_) => (0, 0),
        }
    }

    /// Divides the memory of the counts in this process among the limits of these names: each can use its share, whatever
    /// is asked of the others. A limit that isn't named gets a share with its first request, which others may have used
    /// until then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::Limiter;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// limiter.share_memory_among(["logins", "orders"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn share_memory_among<'l>(&self, limits: impl IntoIterator<Item = &'l str>) {
        if let Store::Memory(store) = &*self.local {
            store.announce(limits);
        }
    }

    /// The limits of which new keys were counted by client network within the last minute, for want of memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::Limiter;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// assert!(limiter.counting_by_network().is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn counting_by_network(&self) -> Vec<String> {
        match &*self.local {
            Store::Memory(store) => store.overflowing(),
            Store::Redis(_) => Vec::new(),
        }
    }

    /// Returns the number of requests that wait for room.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::Limiter;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// assert_eq!(limiter.waiting(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn waiting(&self) -> usize {
        self.waits.count()
    }

    /// Writes the metrics of the store, of waiting requests, and of known rejections.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use prometheus_client::{collector::Collector, encoding::{DescriptorEncoder, text}, registry::Registry};
    /// # use tollgate_limiter::{Limiter, metrics::Page};
    /// /// A collector for a registry of `prometheus-client`.
    /// #[derive(Debug)]
    /// struct OfLimiter(Arc<Limiter>);
    ///
    /// impl Collector for OfLimiter {
    ///     fn encode(&self, encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
    ///         self.0.write_metrics(&mut Page(encoder));
    ///         Ok(())
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let mut registry = Registry::default();
    /// registry.register_collector(Box::new(OfLimiter(limiter)));
    /// let mut page = String::new();
    /// text::encode(&mut page, &registry)?;
    /// assert!(page.contains("\ntollgate_store_up 1\n"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_metrics(&self, page: &mut Page<'_>) {
        self.waits.write_metrics(page);
        page.gauge(
            "tollgate_refusals_remembered",
            "Buckets that are known to be full, so that requests are rejected without asking the store",
            self.refusals.len(),
        );
        page.gauge(
            "tollgate_overrides",
            "Rates of limits and keys that override the file's",
            self.overridden.len(),
        );
        page.counters(
            "tollgate_store_failures",
            "Decisions that the store failed to make, by cause; each limit's on_failure applied",
            self.failures.iter().map(|(kind, count)| ([("kind", kind)], count)),
        );
        page.counter(
            "tollgate_store_clock_set_back",
            "Decisions on sliding windows with permits a window or more ahead of the store's clock, which was set back",
            self.set_back.sum(0),
        );
        page.gauge(
            "tollgate_instances",
            "Gateways that share the limits, by store.instances; 0 if they haven't been counted yet",
            self.instances().unwrap_or(0),
        );
        page.gauge("tollgate_store_up", "1 if the store is available", u32::from(self.store_answers()));
        self.local.write_metrics(page);
        if !Arc::ptr_eq(&self.local, &self.store) {
            self.store.write_metrics(page);
        }
    }

    /// Connects this thread to the store, so that its first decision needn't wait.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limiter};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::connect("memory:")?;
    /// limiter.warm_up().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store can't be reached now. Requests are served by their limits' failure policy until it can.
    pub async fn warm_up(&self) -> Result<(), StoreError> {
        self.store.warm_up().await
    }

    /// Uses the users and passwords of a URL for the store from now on. The URL must lead to the
    /// [same place](crate::StoreUrl::is_same_place), or else nothing changes. Must be called in a tokio runtime.
    ///
    /// Connections that are up stay in use until new ones have been made, so no request fails for it. A login that the
    /// store rejects is tried again each second.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::Limiter;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::connect("redis://gateway:old-password@127.0.0.1:6379")?;
    /// limiter.log_in(&"redis://gateway:new-password@127.0.0.1:6379".parse()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn log_in(&self, url: &StoreUrl) {
        self.store.log_in(url);
    }

    /// Refuses all requests that wait for room, now and later, as if too many waited.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// limiter.end_waits(); // as the program ends
    /// let all = Ask::new(&logins, "alice").cost(5);
    /// limiter.acquire(&all, None).await?;
    /// assert!(limiter.acquire(&all, None).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn end_waits(&self) {
        self.waits.end();
    }

    /// Waits until the store has done, or given up, all operations that were sent without waiting. It repeats the release of a lease
    /// for as long as Redis doesn't answer, so give the wait a timeout.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::Limiter;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// limiter.flush().await; // before the program ends
    /// # Ok(())
    /// # }
    /// ```
    pub async fn flush(&self) {
        self.store.flush().await;
    }
}
