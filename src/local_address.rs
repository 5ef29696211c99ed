//! Whether an address is of this machine or its own network.

use core::net::IpAddr; // core has addresses alone, no sockets

/// Whether a host is such an address; `None` for a name.
pub(crate) fn is_local_address(host: &str) -> Option<bool> {
    Some(match host.trim_matches(['[', ']']).parse().ok()? {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    })
}
