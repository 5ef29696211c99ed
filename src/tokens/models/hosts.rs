//! The images and bytes that hosts accept in one request.

use serde::Deserialize;

use super::Pattern;
use super::known::TABLES;

/// The images and bytes that a host accepts in one request.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
pub struct MediaLimits {
    host: Pattern,
    /// The most images.
    pub images: usize,
    /// From more images than these on, `side` holds.
    pub many: usize,
    /// The longest side of an image, in pixels.
    pub side: usize,
    /// The most bytes of the body.
    pub body: usize,
}

impl MediaLimits {
    /// Those of a host, if they are known.
    pub fn of_host(host: &str) -> Option<&'static Self> {
        TABLES.hosts.iter().find(|limits| limits.host.fits(host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_limits_of_hosts() {
        let images = |host: &str| MediaLimits::of_host(host).map(|limits| limits.images);
        assert_eq!(images("api.anthropic.com"), Some(100));
        assert_eq!(images("bedrock-runtime.eu-west-1.amazonaws.com"), Some(100));
        assert_eq!(images("localhost"), None);
        assert!(TABLES.hosts.iter().all(|limits| limits.many <= limits.images && limits.body >= 1 << 20));
    }
}
