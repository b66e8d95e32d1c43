//! Parses the URL of a PostgreSQL server.

use std::path::Path;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, SslNegotiation};
use toolgate_net::addresses::is_loopback_host;
use toolgate_world::dial::{CertificateTrust, DialAddress};

use crate::password::DatabasePassword;

/// The address of a PostgreSQL server, and the settings for connecting to it.
#[derive(Debug, Clone)]
pub struct PostgresAddress {
    /// The connection settings of the PostgreSQL client, except the server's addresses.
    pub(crate) config: Config,
    /// The server's addresses, in the order in which they are tried.
    pub(crate) addresses: Vec<DialAddress>,
    /// The certificates to trust; `None` if the connection is not encrypted.
    pub(crate) trust: Option<CertificateTrust>,
    /// The name of the server in error messages.
    pub(crate) display_name: String,
    /// The name of the environment variable with the password.
    pub(crate) password_env: String,
}

/// The TLS parameters of a database URL. The PostgreSQL client library does not parse them.
#[derive(Default)]
struct TlsParams {
    mode: Option<String>,
    roots: Option<String>,
}

impl PostgresAddress {
    /// Parses the database URL `url`, which contains no password. The password is `password`, which
    /// was read from the environment variable `password_env`.
    ///
    /// # Errors
    /// The URL cannot be used. The message continues a sentence that begins with the name of the
    /// setting.
    pub fn parse(
        url: &str,
        password_env: &str,
        password: &DatabasePassword,
    ) -> Result<Self, String> {
        if !(url.starts_with("postgresql://") || url.starts_with("postgres://")) {
            return Err("does not start with `postgresql://` or `postgres://`".to_owned());
        }
        let (rest, tls) = split_tls_params(url)?;
        let mut config: Config = rest.parse().map_err(|err: tokio_postgres::Error| {
            use std::error::Error as _;
            let why = err.source().map_or_else(|| err.to_string(), ToString::to_string);
            format!("cannot be read: {why}")
        })?;
        if config.get_password().is_some() {
            return Err(format!(
                "contains a password, which would be visible; put it into the environment \
                 variable {password_env}, or another one set by `password_env`"
            ));
        }
        let addresses = addresses(&config)?;
        let trust = tls.trust(&addresses)?;
        let mode = if trust.is_some() { SslMode::Require } else { SslMode::Disable };
        config.ssl_mode(mode).ssl_negotiation(SslNegotiation::Postgres);
        config.application_name("toolgate");
        if let Some(password) = password.expose() {
            config.password(password);
        }
        let database = config.get_dbname().or(config.get_user()).unwrap_or("postgres");
        let names: Vec<String> = addresses.iter().map(address_name).collect();
        let display_name = format!("PostgreSQL `{database}` at {}", names.join(" or "));
        Ok(Self { config, addresses, trust, display_name, password_env: password_env.to_owned() })
    }
}

/// Splits the database URL `url` into a URL without TLS parameters, and these parameters. If the
/// parameter `host` is a list, the returned URL has one parameter `host` for each host.
fn split_tls_params(url: &str) -> Result<(String, TlsParams), String> {
    let Some((url, query)) = url.split_once('?') else {
        return Ok((url.to_owned(), TlsParams::default()));
    };
    let mut tls = TlsParams::default();
    let mut rest = Vec::new();
    for pair in query.split('&') {
        let (name, raw) = pair.split_once('=').unwrap_or((pair, ""));
        let value = || {
            let text = percent_encoding::percent_decode_str(raw).decode_utf8();
            text.map(String::from).map_err(|_| format!("has a `{name}` that is not UTF-8"))
        };
        match name {
            "sslmode" => tls.mode = Some(value()?),
            "sslrootcert" => tls.roots = Some(value()?),
            // The client library takes a list in this parameter for the name of one host.
            "host" if raw.contains(',') => {
                rest.extend(raw.split(',').map(|host| format!("host={host}")));
            }
            _ => rest.push(pair.to_owned()),
        }
    }
    let rest = rest.join("&");
    let url = if rest.is_empty() { url.to_owned() } else { format!("{url}?{rest}") };
    Ok((url, tls))
}

impl TlsParams {
    fn trust(self, addresses: &[DialAddress]) -> Result<Option<CertificateTrust>, String> {
        let verified = match self.roots.as_deref() {
            None | Some("system") => CertificateTrust::System,
            Some(file) => CertificateTrust::File(file.into()),
        };
        match self.mode.as_deref() {
            None if addresses.iter().all(is_local) => Ok(None),
            None | Some("verify-full") => Ok(Some(verified)),
            Some("disable") => Ok(None),
            Some("require") => Ok(Some(CertificateTrust::AnyCertificate)),
            Some(mode) => Err(format!(
                "has the `sslmode` `{mode}`; use `disable`, `require` (encrypted, certificate not \
                 checked) or `verify-full`"
            )),
        }
    }
}

fn addresses(config: &Config) -> Result<Vec<DialAddress>, String> {
    let ports = config.get_ports();
    let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(5432);
    let address = |(at, host): (usize, &Host)| match host {
        Host::Tcp(host) => DialAddress::Port(host.clone(), port(at)),
        Host::Unix(folder) => DialAddress::Socket(socket(folder, port(at))),
    };
    let addresses: Vec<DialAddress> = config.get_hosts().iter().enumerate().map(address).collect();
    if addresses.is_empty() {
        return Err("has no host; for a Unix socket write `?host=/run/postgresql`".to_owned());
    }
    Ok(addresses)
}

/// Returns the name of `address` in error messages: `host:port`, or the path of the socket.
fn address_name(address: &DialAddress) -> String {
    match address {
        DialAddress::Port(host, port) => format!("{host}:{port}"),
        DialAddress::Socket(path) => path.display().to_string(),
    }
}

fn socket(folder: &Path, port: u16) -> std::path::PathBuf {
    folder.join(format!(".s.PGSQL.{port}"))
}

/// Returns true if `address` is a Unix socket or a loopback host.
fn is_local(address: &DialAddress) -> bool {
    match address {
        DialAddress::Socket(_) => true,
        DialAddress::Port(host, _) => {
            is_loopback_host(host.trim_start_matches('[').trim_end_matches(']'))
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::TargetSessionAttrs;

    use super::*;

    fn parse(url: &str) -> Result<(Vec<DialAddress>, Option<CertificateTrust>), String> {
        PostgresAddress::parse(url, "PGPASSWORD", &DatabasePassword::default())
            .map(|address| (address.addresses, address.trust))
    }

    #[test]
    fn a_remote_connection_is_encrypted_and_verified_by_default() {
        let port = |host: &str| vec![DialAddress::Port(host.to_owned(), 5432)];
        for (url, addresses, trust) in [
            ("postgresql://u@localhost/db", port("localhost"), None),
            ("postgresql://u@127.0.0.1/db", port("127.0.0.1"), None),
            ("postgresql://u@db.example/db", port("db.example"), Some(CertificateTrust::System)),
            ("postgresql://u@db.example/db?sslmode=disable", port("db.example"), None),
            (
                "postgresql://u@db.example/db?sslmode=require",
                port("db.example"),
                Some(CertificateTrust::AnyCertificate),
            ),
            (
                "postgres://u@db.example/db?sslmode=verify-full&sslrootcert=%2Fa%20b.pem",
                port("db.example"),
                Some(CertificateTrust::File("/a b.pem".into())),
            ),
            (
                "postgresql:///db?host=/run/pg&port=5433",
                vec![DialAddress::Socket("/run/pg/.s.PGSQL.5433".into())],
                None,
            ),
        ] {
            assert_eq!(parse(url).unwrap(), (addresses, trust), "{url}");
        }
    }

    #[test]
    fn several_hosts_are_all_tried_and_named() {
        let port = |host: &str, port| DialAddress::Port(host.to_owned(), port);
        for (url, addresses, name) in [
            (
                "postgresql://u@one,two:5433/db?target_session_attrs=read-write",
                vec![port("one", 5432), port("two", 5433)],
                "PostgreSQL `db` at one:5432 or two:5433",
            ),
            (
                "postgresql://u@/db?host=/a,/b&target_session_attrs=read-write",
                vec![
                    DialAddress::Socket("/a/.s.PGSQL.5432".into()),
                    DialAddress::Socket("/b/.s.PGSQL.5432".into()),
                ],
                "PostgreSQL `db` at /a/.s.PGSQL.5432 or /b/.s.PGSQL.5432",
            ),
        ] {
            let parsed =
                PostgresAddress::parse(url, "PGPASSWORD", &DatabasePassword::default()).unwrap();
            assert_eq!(
                (parsed.addresses, parsed.display_name.as_str()),
                (addresses, name),
                "{url}"
            );
            let target = parsed.config.get_target_session_attrs();
            assert_eq!(target, TargetSessionAttrs::ReadWrite);
        }
    }

    #[test]
    fn an_invalid_address_is_an_error_with_the_reason() {
        for (url, why) in [
            ("mysql://u@h/db", "does not start with"),
            ("postgresql://u:secret@h/db", "PGPASSWORD"),
            ("postgresql://u@h/db?sslmode=prefer", "`prefer`"),
            ("postgresql://u@h:port/db", "cannot be read"),
            ("postgresql:///db", "has no host"),
        ] {
            let err = parse(url).unwrap_err();
            assert!(err.contains(why) && !err.contains("secret"), "{url}: {err}");
        }
    }
}
