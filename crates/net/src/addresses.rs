//! Decides to which class an IP address belongs: this machine, public addresses, or private
//! networks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Blocks of IPv4 addresses that are not public, each with its prefix length. The blocks are the
/// special-purpose addresses of IANA's registry, multicast, and reserved addresses.
const SPECIAL_IPV4: [(Ipv4Addr, u32); 14] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    // Carrier-grade NAT.
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    // Link-local addresses, with the metadata services of clouds.
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    // Protocol assignments.
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    // Documentation.
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    // Benchmarks.
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    // Documentation.
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    // Multicast.
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    // Reserved addresses, with the broadcast address.
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// Blocks of IPv4 addresses of private networks, each with its prefix length.
const PRIVATE_IPV4: [(Ipv4Addr, u32); 4] = [
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
];

/// Block of IPv6 addresses of private networks (unique local addresses), with its prefix length.
const PRIVATE_IPV6: (Ipv6Addr, u32) = (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7);

/// IPv4 addresses of cloud metadata services, which hand out credentials of this machine. The
/// link-local addresses of such services are in [`SPECIAL_IPV4`].
const METADATA_IPV4: [Ipv4Addr; 3] = [
    // Alibaba Cloud.
    Ipv4Addr::new(100, 100, 100, 200),
    // Azure.
    Ipv4Addr::new(168, 63, 129, 16),
    // Oracle Cloud.
    Ipv4Addr::new(192, 0, 0, 192),
];

/// IPv6 addresses of cloud metadata services, which hand out credentials of this machine.
const METADATA_IPV6: [Ipv6Addr; 4] = [
    // AWS, for machines, for containers (ECS) and for pods (EKS).
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x170),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    // Google Cloud.
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// Block of global unicast addresses. No other IPv6 address is public.
const GLOBAL_IPV6: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// Blocks of global unicast addresses that are not public, each with its prefix length.
const SPECIAL_IPV6: [(Ipv6Addr, u32); 3] = [
    // Protocol assignments: Teredo (2001::/32), benchmarks (2001:2::/48), ORCHID (2001:10::/28 and
    // 2001:20::/28). IANA's few exceptions are anycast services, which are no HTTP servers.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    // Documentation.
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// Returns true if `address` is this machine: a loopback address, or the unspecified address, to
/// which a connection also reaches this machine.
pub fn is_own_address(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address.is_loopback() || address.is_unspecified()
}

/// Returns true if `host` names this machine: `localhost`, a name below it, or a loopback or
/// unspecified address without brackets.
pub fn is_own_host(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    host == "localhost"
        || host.ends_with(".localhost")
        || host.parse::<IpAddr>().is_ok_and(is_own_address)
}

/// Returns true if nobody on the network can read what is sent to `host`: it is `localhost` or a
/// loopback address without brackets.
///
/// This is stricter than [`is_own_host`], because some resolvers look up `a.localhost` on the
/// network.
pub fn is_loopback_host(host: &str) -> bool {
    let address = host.parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Returns true if `address` is public, that is, globally routable. An IPv6 address that embeds an
/// IPv4 address is public if the IPv4 address is.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_ipv4(v4),
        IpAddr::V6(v6) => match embedded_ipv4(v6) {
            Some(v4) => is_public_ipv4(v4),
            None => {
                is_in_ipv6_block(v6, GLOBAL_IPV6)
                    && !SPECIAL_IPV6.iter().any(|block| is_in_ipv6_block(v6, *block))
            }
        },
    }
}

/// Returns true if `address` is in a private network and is no metadata service of a cloud. An IPv6
/// address that embeds an IPv4 address is private if the IPv4 address is.
pub fn is_private_network(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_private_ipv4(v4),
        IpAddr::V6(v6) => match embedded_ipv4(v6) {
            Some(v4) => is_private_ipv4(v4),
            None => is_in_ipv6_block(v6, PRIVATE_IPV6) && !METADATA_IPV6.contains(&v6),
        },
    }
}

fn is_public_ipv4(address: Ipv4Addr) -> bool {
    !SPECIAL_IPV4.iter().any(|block| is_in_ipv4_block(address, *block))
        && !METADATA_IPV4.contains(&address)
}

fn is_private_ipv4(address: Ipv4Addr) -> bool {
    PRIVATE_IPV4.iter().any(|block| is_in_ipv4_block(address, *block))
        && !METADATA_IPV4.contains(&address)
}

fn is_in_ipv4_block(address: Ipv4Addr, (block, prefix): (Ipv4Addr, u32)) -> bool {
    (address.to_bits() ^ block.to_bits()) >> (u32::BITS - prefix) == 0
}

fn is_in_ipv6_block(address: Ipv6Addr, (block, prefix): (Ipv6Addr, u32)) -> bool {
    (address.to_bits() ^ block.to_bits()) >> (u128::BITS - prefix) == 0
}

/// Returns the IPv4 address that the address `v6` embeds (IPv4-mapped, NAT64 or 6to4), if it embeds
/// one.
fn embedded_ipv4(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let from_halves = |high: u16, low: u16| {
        let [[a, b], [c, d]] = [high.to_be_bytes(), low.to_be_bytes()];
        Ipv4Addr::new(a, b, c, d)
    };
    match v6.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => Some(from_halves(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn addresses_of_this_machine_are_recognized_in_any_spelling() {
        for own in
            ["127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1", "::ffff:0.0.0.0"]
        {
            assert!(is_own_address(address(own)) && is_own_host(own), "{own}");
        }
        for other in ["10.0.0.1", "1.1.1.1", "::2", "::ffff:10.0.0.1"] {
            assert!(!is_own_address(address(other)) && !is_own_host(other), "{other}");
        }
        for own in ["localhost", "LocalHost", "a.localhost"] {
            assert!(is_own_host(own), "{own}");
        }
        for other in ["localhost.example", "notlocalhost", "a.example", ""] {
            assert!(!is_own_host(other), "{other}");
        }
    }

    #[test]
    fn a_loopback_host_is_localhost_itself_or_a_loopback_address() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in ["a.localhost", "0.0.0.0", "::", "10.0.0.1", "a.example"] {
            assert!(!is_loopback_host(host), "{host}");
        }
    }

    #[test]
    fn special_addresses_are_not_public_from_the_first_to_the_last() {
        for (first, last) in [
            ("0.0.0.0", "0.255.255.255"),
            ("10.0.0.0", "10.255.255.255"),
            ("100.64.0.0", "100.127.255.255"),
            ("127.0.0.0", "127.255.255.255"),
            ("169.254.0.0", "169.254.255.255"),
            ("172.16.0.0", "172.31.255.255"),
            ("192.0.0.0", "192.0.0.255"),
            ("192.0.2.0", "192.0.2.255"),
            ("192.168.0.0", "192.168.255.255"),
            ("198.18.0.0", "198.19.255.255"),
            ("198.51.100.0", "198.51.100.255"),
            ("203.0.113.0", "203.0.113.255"),
            ("224.0.0.0", "255.255.255.255"),
            ("::", "::ffff"),
            ("64:ff9b:1::", "64:ff9b:1:ffff:ffff:ffff:ffff:ffff"),
            ("100::", "100::ffff:ffff:ffff:ffff"),
            ("2001::", "2001:0:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2001:2::", "2001:2:0:ffff:ffff:ffff:ffff:ffff"),
            ("2001:10::", "2001:1f:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2001:20::", "2001:2f:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("5f00::", "5f00:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("fc00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("fe80::", "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            // They embed 10.0.0.1 and 169.254.169.254.
            ("::ffff:10.0.0.1", "::ffff:169.254.169.254"),
            ("64:ff9b::a00:1", "64:ff9b::a9fe:a9fe"),
            ("2002:a00:1::", "2002:a9fe:a9fe:ffff::1"),
        ] {
            for text in [first, last] {
                assert!(!is_public(address(text)), "{text}");
            }
        }
    }

    #[test]
    fn addresses_next_to_special_ones_are_public() {
        for text in [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "191.255.255.255",
            "192.0.1.0",
            "192.0.3.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "198.51.99.255",
            "198.51.101.0",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
            "2000:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:200::",
            "2001:db7:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:db9::",
            "3ffe:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "3fff:1000::",
            "2606:4700::1111",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
            "2002:101:101::",
        ] {
            assert!(is_public(address(text)), "{text}");
        }
    }

    #[test]
    fn private_networks_exclude_metadata_services_and_link_local_addresses() {
        for text in [
            "10.0.0.1",
            "100.64.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "fd12::1",
            "fc00::",
            "::ffff:10.0.0.1",
        ] {
            assert!(is_private_network(address(text)), "{text}");
        }
        for text in [
            "1.1.1.1",
            "127.0.0.1",
            "169.254.169.254",
            "100.100.100.200",
            "192.0.0.192",
            "224.0.0.1",
            "0.0.0.0",
            "::1",
            "fe80::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "::ffff:169.254.169.254",
            "::ffff:100.100.100.200",
            "2606:4700::1111",
        ] {
            assert!(!is_private_network(address(text)), "{text}");
        }
    }

    #[test]
    fn metadata_services_are_not_public() {
        for text in ["168.63.129.16", "::ffff:168.63.129.16", "169.254.169.254", "fd00:ec2::254"] {
            assert!(!is_public(address(text)), "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_embedded_address_is_public_if_its_ipv4_address_is(bits in any::<u32>()) {
            let v4 = Ipv4Addr::from_bits(bits);
            let nat64 = Ipv6Addr::from_bits((0x64_ff9b << 96) | u128::from(bits));
            let six_to_four = Ipv6Addr::from_bits((0x2002 << 112) | (u128::from(bits) << 80));
            for v6 in [v4.to_ipv6_mapped(), nat64, six_to_four] {
                prop_assert_eq!(is_public(v6.into()), is_public(v4.into()), "{}", v6);
            }
        }
    }
}
