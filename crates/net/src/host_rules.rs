//! Rules that name the hosts a program may reach: `packages.example.com`, `*.mirror.example`,
//! `git.example.com:22`, `git.example.com/acme/*`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use crate::addresses::{is_own_address, is_own_host, is_private_network, is_public};
use crate::url_paths::{RequestPath, UrlPathPattern};

/// The ports of a host rule that names no port: HTTPS and HTTP.
const DEFAULT_PORTS: [u16; 2] = [443, 80];
/// The longest host name in bytes (RFC 1035).
const HOST_BYTES_MAX: usize = 253;
/// The longest label of a host name in bytes.
const LABEL_BYTES_MAX: usize = 63;

/// A rule that allows connections to a host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostRule {
    host: HostRulePattern,
    /// The port that the rule allows. `None` allows the default ports.
    port: Option<u16>,
    /// The paths that the rule allows on the host. `None` allows all paths.
    path: Option<UrlPathPattern>,
    /// True if the rule allows only public addresses, even if it names the host exactly.
    is_public_only: bool,
}

/// The host of a host rule. Names are in lower case.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum HostRulePattern {
    Name(String),
    /// All host names that end with `.` and this name, but not the name itself.
    Below(String),
    Address(IpAddr),
}

/// The rules for the hosts that one program may reach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct HostRules(Vec<HostRule>);

impl HostRules {
    /// Parses the rules in `texts`.
    ///
    /// # Errors
    /// A sentence about the first invalid rule.
    pub fn parse<S: AsRef<str>>(texts: &[S]) -> Result<Self, String> {
        texts.iter().map(|text| HostRule::parse(text.as_ref())).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the union of these host rules and `others`.
    #[must_use]
    pub fn merge(mut self, others: &Self) -> Self {
        self.0.extend(others.0.iter().cloned());
        self
    }

    /// Returns these host rules, limited to hosts at public addresses.
    #[must_use]
    pub fn only_public(self) -> Self {
        let rules = self.0.into_iter();
        Self(rules.map(|rule| HostRule { is_public_only: true, ..rule }).collect())
    }

    /// Returns true if the rules allow no host.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if a rule allows connections to `host`, a result of [`normalize_host`], on
    /// `port`.
    pub fn allow(&self, host: &str, port: u16) -> bool {
        self.matching(host, port).next().is_some()
    }

    /// Returns true if a rule allows connections to `host` on any port.
    pub fn allows_on_any_port(&self, host: &str) -> bool {
        self.0.iter().any(|rule| rule.host.matches(host))
    }

    /// Returns true if a rule allows `localhost`, a name below it, or a loopback address.
    pub fn concerns_this_machine(&self) -> bool {
        self.0.iter().any(|rule| rule.host.is_this_machine())
    }

    /// Returns true if a rule without a path names `host` and this `port`.
    pub fn names_port(&self, host: &str, port: u16) -> bool {
        self.matching(host, port).any(|rule| rule.port.is_some() && rule.path.is_none())
    }

    /// Returns true if a rule limits the paths of its host.
    pub fn has_paths(&self) -> bool {
        self.0.iter().any(|rule| rule.path.is_some())
    }

    /// Returns true if a rule limits the paths of `host`, on any port.
    pub fn has_paths_for(&self, host: &str) -> bool {
        self.0.iter().any(|rule| rule.path.is_some() && rule.host.matches(host))
    }

    /// Returns true if the rules allow `host` on `port`, but only some of its paths.
    pub fn restricts_paths(&self, host: &str, port: u16) -> bool {
        self.allow(host, port) && self.matching(host, port).all(|rule| rule.path.is_some())
    }

    /// Returns true if a rule allows requests for `path` to `host` on `port`.
    pub fn allow_path(&self, host: &str, port: u16, path: &RequestPath) -> bool {
        self.matching(host, port).any(|rule| rule.allows_path(path))
    }

    /// Returns true if at least one host and port is allowed both by these rules and by `other`.
    /// Ignores paths.
    pub fn overlap(&self, other: &HostRule) -> bool {
        self.0.iter().any(|rule| rule.host.overlaps(&other.host) && rule.shares_port(other))
    }

    /// Returns true if a rule without a wildcard allows connections to `host` on `port`, also if
    /// `host` is in a private network.
    pub fn allows_by_exact_name(&self, host: &str, port: u16) -> bool {
        let is_exact = |rule: &HostRule| !matches!(rule.host, HostRulePattern::Below(_));
        self.matching(host, port).any(|rule| is_exact(rule) && !rule.is_public_only)
    }

    /// Returns true if a rule allows a connection to `host` on `port` at its address `address`.
    ///
    /// A host name may lead to a private network only if a rule names it exactly. Loopback
    /// addresses need a rule about this machine. No rule allows link-local addresses or metadata
    /// services.
    pub fn allows_at_address(&self, host: &str, port: u16, address: IpAddr) -> bool {
        self.matching(host, port).any(|rule| rule.allows_address(address))
    }

    fn matching(&self, host: &str, port: u16) -> impl Iterator<Item = &HostRule> {
        self.0.iter().filter(move |rule| rule.allows_port(port) && rule.host.matches(host))
    }
}

impl fmt::Display for HostRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, rule) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            write!(f, "{separator}{rule}")?;
        }
        Ok(())
    }
}

impl HostRule {
    /// Parses a rule: a host name, `*.` and a name, or an IP address, and optionally `:` and a
    /// port, and a path. An IPv6 address is in brackets. A path that ends with `/*` allows all
    /// paths below a folder.
    ///
    /// # Errors
    /// A sentence that explains why `text` is no rule.
    pub fn parse(text: &str) -> Result<Self, String> {
        let odd = |why: &str| Err(format!("the host {text:?} is invalid: {why}"));
        if text.contains("://") {
            return odd("write the host without a scheme such as `https://`");
        }
        let is_range = |(host, bits): (&str, &str)| {
            is_address(host) && bits.bytes().all(|b| b.is_ascii_digit())
        };
        if text.split_once('/').is_some_and(is_range) {
            return odd("address ranges are not supported; name each address");
        }
        let (authority, path) = text.split_at(text.find('/').unwrap_or(text.len()));
        if authority.contains('@') {
            return odd("it contains `@`; write host names without a user name");
        }
        let path = match Some(path).filter(|path| !path.is_empty()).map(UrlPathPattern::parse) {
            Some(Err(why)) => return odd(&why),
            Some(Ok(path)) => Some(path),
            None => None,
        };
        let (host, port) = match split_port(authority) {
            Ok(parts) => parts,
            Err(why) => return odd(&why),
        };
        match HostRulePattern::parse(host) {
            Ok(host) => Ok(Self { host, port, path, is_public_only: false }),
            Err(why) => odd(why),
        }
    }

    /// Returns true if the rule allows `host`, a result of [`normalize_host`], on `port`. Ignores
    /// paths.
    pub fn covers(&self, host: &str, port: u16) -> bool {
        self.allows_port(port) && self.host.matches(host)
    }

    /// Returns true if the rule allows requests for `path` to its host.
    pub fn allows_path(&self, path: &RequestPath) -> bool {
        self.path.as_ref().is_none_or(|pattern| pattern.matches(path))
    }

    /// Returns true if the rule allows all paths on its host.
    pub fn allows_all_paths(&self) -> bool {
        self.path.is_none()
    }

    /// Returns the host of a rule that names exactly one host with all its paths, and the port if
    /// the rule names one. Returns `None` for any other rule.
    pub fn single_host(&self) -> Option<(String, Option<u16>)> {
        let host = match &self.host {
            HostRulePattern::Name(name) => name.clone(),
            HostRulePattern::Address(address) => address.to_string(),
            HostRulePattern::Below(_) => return None,
        };
        self.path.is_none().then_some((host, self.port))
    }

    fn allows_address(&self, address: IpAddr) -> bool {
        (!self.is_public_only || is_public(address)) && self.host.allows_address(address)
    }

    fn allows_port(&self, port: u16) -> bool {
        self.ports().any(|allowed| allowed == port)
    }

    fn shares_port(&self, other: &Self) -> bool {
        self.ports().any(|port| other.allows_port(port))
    }

    /// Returns the ports that the rule allows.
    fn ports(&self) -> impl Iterator<Item = u16> {
        let defaults = DEFAULT_PORTS.into_iter().filter(move |_| self.port.is_none());
        self.port.into_iter().chain(defaults)
    }
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            HostRulePattern::Name(name) => write!(f, "{name}")?,
            HostRulePattern::Below(name) => write!(f, "*.{name}")?,
            HostRulePattern::Address(IpAddr::V4(address)) => write!(f, "{address}")?,
            HostRulePattern::Address(IpAddr::V6(address)) => write!(f, "[{address}]")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))?;
        self.path.as_ref().map_or(Ok(()), |path| write!(f, "{path}"))
    }
}

impl HostRulePattern {
    /// Parses the host of a rule.
    ///
    /// # Errors
    /// The reason why `host` is not valid in a rule.
    fn parse(host: &str) -> Result<Self, &'static str> {
        if let Some(name) = host.strip_prefix("*.") {
            let name = normalize_host(name).ok_or("after `*.` there must be a host name")?;
            if name.parse::<IpAddr>().is_ok() {
                return Err("`*.` needs a host name, not an IP address");
            }
            if !name.contains('.') && name != "localhost" {
                return Err("a wildcard for a top-level domain allows too many hosts");
            }
            return Ok(Self::Below(name));
        }
        if host == "*" {
            return Err(
                "`*` is only allowed as the first label, `*.`; to allow every host, leave `hosts` \
                 out and use `profile = \"network\"`",
            );
        }
        if host.contains('*') {
            return Err("`*` is only allowed as the first label, `*.`");
        }
        let name = normalize_host(host).ok_or(
            "it must be a host name of letters, digits, `-` and `.` (IDNs in their `xn--` form) or \
             an IP address",
        )?;
        match name.parse::<IpAddr>() {
            Ok(address) if !is_reachable_if_named(address) => {
                Err("programs may never reach this address")
            }
            Ok(address) => Ok(Self::Address(address.to_canonical())),
            Err(_) => Ok(Self::Name(name)),
        }
    }

    /// Returns true if a host exists that both patterns match.
    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Below(one), Self::Below(two)) => {
                one == two || self.matches(two) || other.matches(one)
            }
            (Self::Name(name), pattern) | (pattern, Self::Name(name)) => pattern.matches(name),
            (Self::Address(address), pattern) | (pattern, Self::Address(address)) => {
                pattern.matches(&address.to_string())
            }
        }
    }

    fn matches(&self, host: &str) -> bool {
        match self {
            Self::Name(name) => name == host,
            Self::Below(name) => host
                .strip_suffix(name.as_str())
                .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
            Self::Address(address) => {
                host.parse::<IpAddr>().is_ok_and(|host| host.to_canonical() == *address)
            }
        }
    }

    fn is_this_machine(&self) -> bool {
        match self {
            Self::Name(name) | Self::Below(name) => is_own_host(name),
            Self::Address(address) => is_own_address(*address),
        }
    }

    fn allows_address(&self, address: IpAddr) -> bool {
        match self {
            Self::Name(name) | Self::Below(name) if is_own_host(name) => is_own_address(address),
            Self::Name(_) => is_public(address) || is_private_network(address),
            Self::Below(_) => is_public(address),
            Self::Address(allowed) => address.to_canonical() == *allowed,
        }
    }
}

/// Returns true if a host rule that names `address` exactly can allow connections to that address.
fn is_reachable_if_named(address: IpAddr) -> bool {
    let address = address.to_canonical();
    is_public(address) || is_private_network(address) || address.is_loopback()
}

/// Returns true if `host` is an IP address, with or without brackets.
fn is_address(host: &str) -> bool {
    host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok()
}

/// Splits `text` into a host and a port.
///
/// # Errors
/// The port is invalid, or an IPv6 address has no brackets.
fn split_port(text: &str) -> Result<(&str, Option<u16>), String> {
    let port = |text: &str| {
        let number = text.parse::<u16>().ok().filter(|number| *number != 0);
        number.ok_or_else(|| {
            format!("the port `{}` is not a number from 1 to 65535", text.escape_debug())
        })
    };
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err(format!(
            "write an IPv6 address in brackets: `[{text}]`, or `[{text}]:PORT` for one port"
        ));
    }
    if let Some(rest) = text.strip_prefix('[') {
        let Some((address, rest)) = rest.split_once(']') else {
            return Err("the bracket `]` after the IPv6 address is missing".to_owned());
        };
        return match rest.strip_prefix(':') {
            Some(number) => Ok((address, Some(port(number)?))),
            None if rest.is_empty() => Ok((address, None)),
            None => Err("after `]` there must be nothing, or `:` and a port".to_owned()),
        };
    }
    match text.split_once(':') {
        Some((host, number)) => Ok((host, Some(port(number)?))),
        None => Ok((text, None)),
    }
}

/// Returns `host` in the form in which hosts are compared: in lower case, without a final dot, and
/// an IP address in its canonical form without brackets.
///
/// Returns `None` if `host` is neither a host name nor an IP address. A name whose last label is a
/// number is not a host name here, because resolvers read texts such as `127.1` as addresses.
pub fn normalize_host(host: &str) -> Option<String> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Some(address.to_canonical().to_string());
    }
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let is_label = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_numeric = |label: &str| {
        label.bytes().all(|b| b.is_ascii_digit())
            || label
                .strip_prefix("0x")
                .is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_name =
        name.len() <= HOST_BYTES_MAX && name.split('.').all(is_label) && !is_numeric(last);
    is_name.then_some(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules(texts: &[&str]) -> HostRules {
        HostRules::parse(texts).expect("valid rules")
    }

    #[test]
    fn a_rule_for_one_host_with_all_paths_has_a_single_host() {
        let single = |text: &str| HostRule::parse(text).expect("a valid rule").single_host();
        assert_eq!(single("Git.example.com"), Some(("git.example.com".to_owned(), None)));
        assert_eq!(single("[::1]:22"), Some(("::1".to_owned(), Some(22))));
        assert_eq!((single("*.example.com"), single("a.example/b/*")), (None, None));
        let limited = rules(&["a.example", "a.example:8443/b/*"]);
        assert!(limited.has_paths_for("a.example") && !limited.has_paths_for("b.example"));
    }

    #[test]
    fn a_rule_matches_its_host_and_its_ports_only() {
        for (rule, allowed, refused) in [
            (
                "packages.example.com",
                &[("packages.example.com", 443), ("packages.example.com", 80)][..],
                &[
                    ("packages.example.com", 22),
                    ("example.com", 443),
                    ("a.packages.example.com", 443),
                    ("packages.example.com.evil.example", 443),
                ][..],
            ),
            (
                "*.mirror.example",
                &[("a.mirror.example", 443), ("a.b.mirror.example", 80)],
                &[("mirror.example", 443), ("evilmirror.example", 443), (".mirror.example", 443)],
            ),
            ("git.example.com:22", &[("git.example.com", 22)], &[("git.example.com", 443)]),
            ("GIT.Example.com.", &[("git.example.com", 443)], &[("git.example.org", 443)]),
            ("127.0.0.1:8000", &[("127.0.0.1", 8000)], &[("127.0.0.2", 8000), ("localhost", 8000)]),
            ("[2606:4700::1111]:8443", &[("2606:4700::1111", 8443)], &[("2606:4700::1111", 443)]),
            ("*.localhost:1", &[("a.localhost", 1)], &[("localhost", 1)]),
        ] {
            let rules = rules(&[rule]);
            for (host, port) in allowed {
                assert!(rules.allow(host, *port), "{rule}: {host}:{port}");
            }
            for (host, port) in refused {
                assert!(!rules.allow(host, *port), "{rule}: {host}:{port}");
            }
        }
    }

    #[test]
    fn a_host_is_named_exactly_only_by_a_rule_without_a_wildcard_for_its_port() {
        let rules = rules(&["*.example.com", "a.example.com:22", "10.0.0.1"]);
        for (host, port, expected) in [
            ("a.example.com", 22, true),
            ("a.example.com", 443, false),
            ("b.example.com", 443, false),
            ("10.0.0.1", 80, true),
            ("c.example", 443, false),
        ] {
            assert_eq!(rules.allows_by_exact_name(host, port), expected, "{host}:{port}");
        }
    }

    #[test]
    fn a_rule_with_a_path_limits_a_host_unless_another_rule_allows_it() {
        let git = ("git.example.com", 443);
        let path = |text: &str| RequestPath::parse(text).expect("a path");
        let limited = rules(&["git.example.com/acme/*", "git.example.com:8443/acme/*"]);
        assert!(limited.has_paths() && limited.restricts_paths(git.0, git.1));
        assert!(limited.allow_path(git.0, git.1, &path("/acme/a")));
        assert!(!limited.allow_path(git.0, git.1, &path("/other/a")));
        assert!(!limited.restricts_paths("other.example", 443));
        // Another protocol has no paths.
        assert!(!limited.names_port("git.example.com", 8443));
        let open = rules(&["git.example.com/acme/*", "*.example.com"]);
        assert!(!open.restricts_paths(git.0, git.1));
        assert!(open.allow_path(git.0, git.1, &path("/other/a")));
    }

    #[test]
    fn rules_overlap_if_both_allow_a_host_and_a_port() {
        for (one, other, expected) in [
            ("a.example.com", "a.example.com/x/*", true),
            ("a.example.com", "*.example.com", true),
            ("*.example.com", "*.a.example.com", true),
            ("*.example.com", "*.example.org", false),
            ("a.example.com", "b.example.com", false),
            ("a.example.com:8443", "a.example.com", false),
            ("a.example.com:443", "*.example.com", true),
            ("10.0.0.1", "10.0.0.1:80", true),
            ("10.0.0.1", "a.example.com", false),
        ] {
            let rule = |text: &str| HostRule::parse(text).expect("a rule");
            assert_eq!(rules(&[one]).overlap(&rule(other)), expected, "{one} {other}");
            assert_eq!(rules(&[other]).overlap(&rule(one)), expected, "{other} {one}");
        }
    }

    #[test]
    fn an_invalid_rule_is_refused_with_the_reason() {
        for (rule, why) in [
            ("https://a.example", "scheme"),
            ("git.example.com/acme*", "after its last `/`"),
            ("git.example.com/", "all paths on the host"),
            ("git.example.com/a/../*", "segment of dots"),
            ("user@a.example", "without a user"),
            ("@npm", "without a user"),
            ("*", "to allow every host"),
            ("a.*.example", "first label"),
            ("*.com", "too many hosts"),
            ("*.", "must be a host name"),
            ("*.10.0.0.1", "not an IP address"),
            ("", "must be a host name"),
            ("a b", "must be a host name"),
            ("a..b", "must be a host name"),
            ("127.1", "must be a host name"),
            ("0x7f.0x1", "must be a host name"),
            ("2130706433", "must be a host name"),
            ("bücher.example", "xn--"),
            ("a.example:0", "port"),
            ("a.example:99999", "port"),
            ("localhost:91O1", "the port `91O1` is not a number"),
            ("::1", "`[::1]:PORT`"),
            ("[::1", "`]`"),
            ("[::1]80", "nothing, or `:` and a port"),
            ("192.168.0.0/16", "address ranges"),
            ("[fd00::]/8", "address ranges"),
            ("fd00::/8", "address ranges"),
            ("169.254.169.254", "programs may never reach"),
            ("100.100.100.200", "programs may never reach"),
            ("0.0.0.0:80", "programs may never reach"),
            ("[fe80::1]", "programs may never reach"),
            ("[::ffff:169.254.169.254]", "programs may never reach"),
        ] {
            let refusal = HostRule::parse(rule).expect_err(rule);
            assert!(refusal.contains(why), "{rule}: {refusal}");
        }
    }

    #[test]
    fn an_address_is_allowed_only_for_a_rule_that_may_lead_there() {
        let public = ["1.1.1.1", "2606:4700::1111"];
        let private = ["10.0.0.1", "192.168.0.9", "fd12::1"];
        let never = ["127.0.0.1", "::1", "0.0.0.0", "169.254.169.254", "fe80::1", "fd00:ec2::254"];
        let check = |rule: &str, host: &str, addresses: &[&str], expected: bool| {
            for text in addresses {
                let address = text.parse().expect("an address");
                let allowed = rules(&[rule]).allows_at_address(host, 443, address);
                assert_eq!(allowed, expected, "{rule}: {host} at {text}");
            }
        };
        check("a.example", "a.example", &public, true);
        check("a.example", "a.example", &private, true);
        check("a.example", "a.example", &never, false);
        check("*.example.com", "a.example.com", &public, true);
        check("*.example.com", "a.example.com", &private, false);
        check("*.example.com", "a.example.com", &never, false);
        check("localhost:443", "localhost", &["127.0.0.1", "::1"], true);
        check("localhost:443", "localhost", &["10.0.0.1", "1.1.1.1"], false);
        check("10.0.0.1", "10.0.0.1", &["10.0.0.1"], true);
        check("10.0.0.1", "10.0.0.1", &["10.0.0.2"], false);
    }

    #[test]
    fn a_rule_limited_to_public_addresses_leads_to_no_private_network() {
        let rules = rules(&["a.example", "10.0.0.1", "localhost:443"]).only_public();
        for (host, address, expected) in [
            ("a.example", "1.1.1.1", true),
            ("a.example", "10.0.0.1", false),
            ("a.example", "127.0.0.1", false),
            ("10.0.0.1", "10.0.0.1", false),
            ("localhost", "127.0.0.1", false),
        ] {
            let address = address.parse().expect("an address");
            assert_eq!(
                rules.allows_at_address(host, 443, address),
                expected,
                "{host} at {address}"
            );
        }
        assert!(!rules.allows_by_exact_name("a.example", 443));
    }

    proptest! {
        #[test]
        fn a_parsed_rule_is_written_so_that_it_parses_the_same(text in "\\PC{0,40}") {
            if let Ok(rule) = HostRule::parse(&text) {
                prop_assert_eq!(HostRule::parse(&rule.to_string()), Ok(rule));
            }
        }

        #[test]
        fn a_normalized_host_stays_the_same(text in "[a-zA-Z0-9._:\\[\\]-]{0,40}") {
            if let Some(host) = normalize_host(&text) {
                prop_assert_eq!(normalize_host(&host), Some(host));
            }
        }
    }
}
