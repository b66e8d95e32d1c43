//! Checks `Host`, `Origin` and `Sec-Fetch-Site` to reject requests that a malicious page causes.

use std::collections::HashSet;
use std::net::SocketAddr;

use http::header::{HOST, HeaderName, HeaderValue, ORIGIN};
use http::{Request, StatusCode};

/// Header in which browsers report the relation between a page and the target of its request.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Rules for the `Host` names and page origins of requests that a listener accepts.
///
/// A page of another site can resolve its own name to this machine and then send requests to it
/// (DNS rebinding). Such requests contain the page's name in `Host` and `Origin`, so both must be
/// accepted names. The request of an embedded image (`<img>`) has no `Origin`, but its
/// `Sec-Fetch-Site` shows that the page is on another site.
#[derive(Debug, Clone)]
pub struct RequestOriginRules {
    hosts: HashSet<String>,
    origins: HashSet<String>,
    /// Scheme (`http` or `https`) of the server's own origin.
    scheme: &'static str,
}

/// Reason why the rules for `Host` and `Origin` reject a request, with the response.
pub(crate) struct RequestOriginRefusal {
    pub(crate) status: StatusCode,
    pub(crate) why: String,
}

impl RequestOriginRules {
    /// Creates rules that accept requests to the loopback names at the port of `addr`, to `hosts`,
    /// and from `origins`.
    pub fn new(addr: SocketAddr, hosts: &[String], origins: &[String]) -> Self {
        let mut hosts: HashSet<String> = hosts.iter().cloned().collect();
        let port = addr.port();
        for name in default_names(addr) {
            hosts.insert(format!("{name}:{port}"));
            if port == 80 {
                hosts.insert(name);
            }
        }
        Self { hosts, origins: origins.iter().cloned().collect(), scheme: "http://" }
    }

    /// Sets `https` as the scheme of the server's own origin at `addr`.
    pub fn with_tls(mut self, addr: SocketAddr) -> Self {
        if addr.port() == 443 {
            self.hosts.extend(default_names(addr));
        }
        Self { scheme: "https://", ..self }
    }

    pub(crate) fn check<B>(&self, request: &Request<B>) -> Result<(), RequestOriginRefusal> {
        let mut hosts = request.headers().get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            let why = "a request needs exactly one `Host` header\n".to_owned();
            return Err(RequestOriginRefusal { status: StatusCode::BAD_REQUEST, why });
        };
        let host = String::from_utf8_lossy(host.as_bytes());
        let target = request.uri().authority().map(|authority| authority.as_str());
        if !self.hosts.contains(host.as_ref()) || target.is_some_and(|target| target != host) {
            return Err(forbid("Host", &host, "server.allowed_hosts"));
        }
        let mut has_origin = false;
        for origin in request.headers().get_all(ORIGIN) {
            has_origin = true;
            let origin = String::from_utf8_lossy(origin.as_bytes());
            let own = origin.strip_prefix(self.scheme);
            let own = own.is_some_and(|host| self.hosts.contains(host));
            if !own && !self.origins.contains(origin.as_ref()) {
                return Err(forbid("Origin", &origin, "server.allowed_origins"));
            }
        }
        let sites = request.headers().get_all(FETCH_SITE);
        let is_own = |site: &HeaderValue| matches!(site.as_bytes(), b"same-origin" | b"none");
        if !has_origin && !sites.iter().all(is_own) {
            let why = "the request comes from a page of another site that sends no `Origin`; open \
                       the address directly, or let the page send its `Origin`\n";
            return Err(RequestOriginRefusal {
                status: StatusCode::FORBIDDEN,
                why: why.to_owned(),
            });
        }
        Ok(())
    }
}

fn forbid(header: &str, value: &str, setting: &str) -> RequestOriginRefusal {
    let why =
        format!("the {header} `{value}` is not allowed; to allow it, add it to `{setting}`\n");
    RequestOriginRefusal { status: StatusCode::FORBIDDEN, why }
}

/// Returns the names that a server at `addr` always accepts.
fn default_names(addr: SocketAddr) -> [String; 4] {
    ["localhost", "127.0.0.1", "[::1]", &address_literal(addr)].map(str::to_owned)
}

/// Returns the address `addr` in the form of a `Host` header.
fn address_literal(addr: SocketAddr) -> String {
    match addr {
        SocketAddr::V4(addr) => addr.ip().to_string(),
        SocketAddr::V6(addr) => format!("[{}]", addr.ip()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &[(&str, &str)]) -> u16 {
        let admission = RequestOriginRules::new(
            ([127, 0, 0, 1], 8000).into(),
            &[],
            &["https://a.example".into()],
        );
        let request =
            headers.iter().fold(Request::builder().uri("/mcp"), |r, (n, v)| r.header(*n, *v));
        let request = request.body(()).expect("a request");
        admission.check(&request).map_or_else(|refusal| refusal.status.as_u16(), |()| 200)
    }

    #[test]
    fn only_loopback_names_with_the_own_port_are_allowed_hosts() {
        for host in ["localhost:8000", "127.0.0.1:8000", "[::1]:8000"] {
            assert_eq!(check(&[("host", host)]), 200, "{host}");
        }
        let strangers = [
            "evil.example:8000",
            "0.0.0.0:8000",
            "localhost.:8000",
            "LOCALHOST:8000",
            "127.1:8000",
            "[::ffff:127.0.0.1]:8000",
            "2130706433:8000",
            "localhost",
            "localhost:8001",
            "a@localhost:8000",
            "localhost:8000.evil.example",
            "",
        ];
        for host in strangers {
            assert_eq!(check(&[("host", host)]), 403, "{host}");
        }
    }

    #[test]
    fn own_pages_must_use_https_if_the_server_uses_tls() {
        let admission = RequestOriginRules::new(([127, 0, 0, 1], 443).into(), &[], &[]);
        let admission = admission.with_tls(([127, 0, 0, 1], 443).into());
        for (host, origin, admitted) in [
            ("localhost", "https://localhost", true),
            ("localhost:443", "https://localhost:443", true),
            ("localhost", "http://localhost", false),
            ("localhost", "https://localhost:8443", false),
        ] {
            let request = Request::builder().header("host", host).header("origin", origin);
            let request = request.body(()).expect("a request");
            assert_eq!(admission.check(&request).is_ok(), admitted, "{origin}");
        }
    }

    #[test]
    fn a_request_without_exactly_one_host_is_malformed() {
        assert_eq!(check(&[]), 400);
        assert_eq!(check(&[("host", "localhost:8000"), ("host", "localhost:8000")]), 400);
    }

    #[test]
    fn an_unknown_origin_is_refused_even_with_an_allowed_host() {
        let host = ("host", "localhost:8000");
        assert_eq!(check(&[host, ("origin", "http://localhost:8000")]), 200);
        assert_eq!(check(&[host, ("origin", "https://a.example")]), 200);
        for origin in
            ["null", "http://evil.example", "http://localhost:3000", "https://localhost:8000"]
        {
            assert_eq!(check(&[host, ("origin", origin)]), 403, "{origin}");
        }
    }

    #[test]
    fn a_cross_site_request_without_an_origin_is_refused() {
        let host = ("host", "localhost:8000");
        for (site, status) in [
            ("none", 200),
            ("same-origin", 200),
            ("cross-site", 403),
            ("same-site", 403),
            ("", 403),
            ("CROSS-SITE", 403),
        ] {
            let site = ("sec-fetch-site", site);
            assert_eq!(check(&[host, site]), status, "{site:?}");
            assert_eq!(check(&[host, site, ("origin", "https://a.example")]), 200, "{site:?}");
            assert_eq!(check(&[host, site, ("origin", "http://evil.example")]), 403, "{site:?}");
        }
        let own = ("sec-fetch-site", "none");
        let other = ("sec-fetch-site", "cross-site");
        assert_eq!(check(&[host, own, other]), 403);
    }
}
