//! Finds the address of the client behind trusted proxies.

use std::net::{IpAddr, SocketAddr};

use toolgate_contract::FrameMetadata;

use crate::config::ServerSection;
use crate::config::proxies::{IpAddressRange, trusted_ranges};

/// The header `Forwarded` of RFC 7239, whose values have parameters.
const FORWARDED: &str = "forwarded";

/// Trusted reverse proxies, and the header in which they send the client's address.
pub(super) struct TrustedProxies {
    ranges: Vec<IpAddressRange>,
    /// Name of the header with the client's address, in lower case.
    header: String,
}

impl TrustedProxies {
    /// Creates the trusted proxies that `server` configures.
    ///
    /// # Errors
    /// Fails if a configured proxy is neither an address nor a network.
    pub(super) fn from_config(server: &ServerSection) -> anyhow::Result<Self> {
        let header = server.forwarded_header.to_ascii_lowercase();
        Ok(Self { ranges: trusted_ranges(server)?, header })
    }

    /// Returns the address of the client that sent `head` over a connection from `peer`.
    ///
    /// Each proxy appends the address from which it was called. So the last address that is not a
    /// trusted proxy is the client's address. A client may invent earlier addresses.
    pub(super) fn client_address(&self, peer: IpAddr, head: &FrameMetadata) -> IpAddr {
        let mut address = peer;
        if !self.trusts(address) {
            return address;
        }
        let values: Vec<&[u8]> = head.header(&self.header).collect();
        let entries = values.iter().rev().flat_map(|value| value.rsplit(|byte| *byte == b','));
        for entry in entries {
            let entry = std::str::from_utf8(entry).ok().and_then(|text| self.parse_entry(text));
            let Some(entry) = entry else { break };
            address = entry;
            if !self.trusts(address) {
                break;
            }
        }
        address
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(address))
    }

    /// Parses one entry of the forwarding header. Returns `None` if it names no address.
    fn parse_entry(&self, entry: &str) -> Option<IpAddr> {
        if self.header != FORWARDED {
            return parse_node(entry.trim());
        }
        let value = entry.split(';').find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case("for").then_some(value.trim())
        })?;
        parse_node(value.trim_matches('"'))
    }
}

/// Parses an IP address with or without a port. An IPv6 address may be in brackets. Returns `None`
/// if `text` is not an address.
fn parse_node(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let with_port = || text.parse::<SocketAddr>().map(|address| address.ip());
    bare.parse::<IpAddr>().or_else(|_| with_port()).ok()
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue, Method};

    use super::*;

    /// Returns the client address that is determined for a request forwarded by the proxy 10.0.0.1,
    /// with `values` in the header `header`.
    fn client(header: &str, values: &[&str]) -> String {
        client_of("10.0.0.1", header, values)
    }

    fn client_of(peer: &str, header: &str, values: &[&str]) -> String {
        let proxies = TrustedProxies::from_config(&ServerSection {
            trusted_proxies: vec!["10.0.0.0/8".to_owned(), "fd00::/8".to_owned()],
            forwarded_header: header.to_owned(),
            ..ServerSection::default()
        });
        let name: HeaderName = header.parse().expect("a name");
        let values = values.iter().map(|value| HeaderValue::from_str(value).expect("a value"));
        let headers: HeaderMap = values.map(|value| (name.clone(), value)).collect();
        let head = FrameMetadata::Http {
            method: Method::POST,
            path: "/mcp".to_owned(),
            query: String::new(),
            headers,
        };
        let peer = peer.parse().expect("an address");
        proxies.expect("proxies").client_address(peer, &head).to_string()
    }

    #[test]
    fn the_last_address_that_no_trusted_proxy_has_is_the_client() {
        for (values, expected) in [
            (&["192.0.2.1"][..], "192.0.2.1"),
            (&["203.0.113.5, 192.0.2.1"], "192.0.2.1"),
            (&["203.0.113.5, 192.0.2.1, 10.1.1.1"], "192.0.2.1"),
            (&["203.0.113.5", "192.0.2.1,10.1.1.1"], "192.0.2.1"),
            (&["192.0.2.1:4711"], "192.0.2.1"),
            (&["[2001:db8::7]:4711"], "2001:db8::7"),
            (&["2001:db8::7"], "2001:db8::7"),
            (&["10.2.2.2, 10.1.1.1"], "10.2.2.2"),
            (&["192.0.2.1, unknown"], "10.0.0.1"),
            (&["192.0.2.1, unknown, 10.1.1.1"], "10.1.1.1"),
            (&[""], "10.0.0.1"),
            (&[], "10.0.0.1"),
        ] {
            assert_eq!(client("X-Forwarded-For", values), expected, "{values:?}");
        }
    }

    #[test]
    fn the_standard_header_is_read_by_its_parameters() {
        for (value, expected) in [
            ("for=192.0.2.1", "192.0.2.1"),
            ("proto=https;For=\"192.0.2.1:80\";by=10.0.0.1", "192.0.2.1"),
            ("for=203.0.113.5, for=\"[2001:db8::7]:80\", for=10.1.1.1", "2001:db8::7"),
            ("for=_hidden", "10.0.0.1"),
            ("192.0.2.1", "10.0.0.1"),
        ] {
            assert_eq!(client("Forwarded", &[value]), expected, "{value}");
        }
    }

    #[test]
    fn the_header_of_a_peer_that_is_no_trusted_proxy_is_ignored() {
        assert_eq!(client_of("192.0.2.9", "X-Real-IP", &["203.0.113.5"]), "192.0.2.9");
        assert_eq!(client_of("fd00::1", "X-Real-IP", &["203.0.113.5"]), "203.0.113.5");
        assert_eq!(client_of("::ffff:10.0.0.1", "X-Real-IP", &["203.0.113.5"]), "203.0.113.5");
    }
}
