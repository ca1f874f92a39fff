//! The upstreams of a route, and their shares of its requests.

/// The upstreams of a route, by their indexes, each with its weight. The weights don't add up to 0.
#[derive(Debug)]
pub(crate) struct Split(Vec<(usize, u32)>);

impl Split {
    /// Creates a split among upstreams by weight.
    pub(crate) fn of(weights: Vec<(usize, u32)>) -> Self {
        Self(weights)
    }

    /// Draws an upstream for a request. Each has a chance in proportion to its weight.
    pub(crate) fn draw(&self) -> usize {
        let [first, others @ ..] = &self.0[..] else { return 0 };
        if others.is_empty() {
            return first.0;
        }
        let mut left = fastrand::u32(..self.sum());
        for (upstream, weight) in &self.0 {
            match left.checked_sub(*weight) {
                Some(less) => left = less,
                None => return *upstream,
            }
        }
        first.0
    }

    /// Returns true if both have an upstream in common.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().any(|(own, _)| other.0.iter().any(|(theirs, _)| own == theirs))
    }

    /// Returns the upstreams that get requests.
    pub(crate) fn upstreams(&self) -> impl Iterator<Item = usize> {
        self.0.iter().filter(|(_, weight)| *weight > 0).map(|(upstream, _)| *upstream)
    }

    /// Returns the upstreams with their shares of the requests in percent.
    pub(crate) fn shares(&self) -> impl Iterator<Item = (usize, f64)> {
        let sum = f64::from(self.sum());
        self.0.iter().map(move |(upstream, weight)| (*upstream, 100.0 * f64::from(*weight) / sum))
    }

    fn sum(&self) -> u32 {
        self.0.iter().map(|(_, weight)| weight).sum()
    }
}
