//! How much of images hosts take in one request.

use std::sync::LazyLock;

use serde::Deserialize;

use super::{Pattern, known};

/// How much of images a host takes in one request.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
pub struct MediaLimits {
    host: Pattern,
    /// The most images.
    pub images: usize,
    /// Of more images than these, none has a longer side than `side`.
    pub many: usize,
    /// In pixels.
    pub side: usize,
    /// The most bytes of the whole body.
    pub body: usize,
}

/// The limits in the file of models.
#[derive(Default, Deserialize)]
struct Table {
    hosts: Vec<MediaLimits>,
}

/// A test reads the file.
static TABLE: LazyLock<Table> = LazyLock::new(|| toml::from_str(known::FILE).unwrap_or_default());

impl MediaLimits {
    /// Those of a host, if they are known.
    pub fn of_host(host: &str) -> Option<&'static Self> {
        TABLE.hosts.iter().find(|limits| limits.host.fits(host))
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
        assert!(TABLE.hosts.iter().all(|limits| limits.many <= limits.images && limits.body >= 1 << 20));
    }
}
