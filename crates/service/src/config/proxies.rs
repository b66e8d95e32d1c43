//! Reverse proxies whose statements about a client's address are trusted.

use std::net::IpAddr;

use anyhow::{Context, bail};
use http::HeaderName;

use super::ServerSection;

/// Number of bits of an IPv6 address. An IPv4 address counts as the IPv6 address that contains it
/// (`::ffff:a.b.c.d`).
const ADDRESS_BITS: u32 = 128;
/// Number of bits of an IPv4 address.
const IPV4_BITS: u32 = 32;

/// Range of IP addresses, such as `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IpAddressRange {
    first: u128,
    prefix_bits: u32,
}

impl IpAddressRange {
    /// Parses an IP address such as `10.0.0.1`, or a network such as `10.0.0.0/8`. Returns `None`
    /// if `text` is neither.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let address = address.parse::<IpAddr>().ok()?;
        let own_bits = if address.is_ipv4() { IPV4_BITS } else { ADDRESS_BITS };
        let prefix = prefix.unwrap_or(own_bits);
        (prefix <= own_bits).then(|| Self {
            first: address_number(address),
            prefix_bits: ADDRESS_BITS - own_bits + prefix,
        })
    }

    /// Returns true if `address` is in this range.
    pub(crate) fn contains(self, address: IpAddr) -> bool {
        let differing = self.first ^ address_number(address);
        differing.leading_zeros() >= self.prefix_bits
    }
}

fn address_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

/// Returns the address ranges of the setting `server.trusted_proxies`.
///
/// # Errors
/// An entry of the setting is neither an address nor a network.
pub(crate) fn trusted_ranges(server: &ServerSection) -> anyhow::Result<Vec<IpAddressRange>> {
    let ranges = server.trusted_proxies.iter().map(|text| {
        IpAddressRange::parse(text).with_context(|| {
            format!(
                "`{text}` in server.trusted_proxies is not an address; write an address such as \
                 `127.0.0.1`, or a network such as `10.0.0.0/8`"
            )
        })
    });
    ranges.collect()
}

/// Checks the trusted proxies of `server`, and the name of the header in which they send the
/// client's address. Fails if one of them is invalid.
pub(super) fn check(server: &ServerSection) -> anyhow::Result<()> {
    trusted_ranges(server)?;
    let header = &server.forwarded_header;
    if header.parse::<HeaderName>().is_err() {
        bail!("server.forwarded_header is `{header}`, which is not a valid header name");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_contains_the_addresses_of_its_network_only() {
        for (range, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("10.9.9.9/8", "10.0.0.1", "9.255.255.255"),
            ("192.0.2.7", "::ffff:192.0.2.7", "192.0.2.8"),
            ("192.0.2.4/31", "192.0.2.5", "192.0.2.6"),
            ("0.0.0.0/0", "203.0.113.9", "2001:db8::1"),
            ("2001:db8::/32", "2001:db8:1::1", "2001:db9::1"),
            ("::1", "::1", "127.0.0.1"),
            ("::/0", "127.0.0.1", ""),
        ] {
            let parsed = IpAddressRange::parse(range).expect(range);
            let contains = |text: &str| text.parse().is_ok_and(|address| parsed.contains(address));
            assert_eq!((contains(inside), contains(outside)), (true, false), "{range}");
        }
    }

    #[test]
    fn a_text_that_is_no_address_or_network_is_refused() {
        for text in ["", "10.0.0.0/33", "::1/129", "10.0.0/8", "proxy.example", "10.0.0.1/", "/8"] {
            assert_eq!(IpAddressRange::parse(text), None, "{text}");
        }
        let refusal = |server: ServerSection| check(&server).expect_err("refused").to_string();
        let odd = ServerSection { trusted_proxies: vec!["nginx".into()], ..Default::default() };
        assert!(refusal(odd).contains("`nginx` in server.trusted_proxies"));
        let odd = ServerSection { forwarded_header: "a b".into(), ..Default::default() };
        assert!(refusal(odd).contains("server.forwarded_header is `a b`"));
    }
}
