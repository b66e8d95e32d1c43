//! The certificate authority of one run of a program, with which its forwarder decrypts TLS.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use toolgate_contract::lock_mutex;

/// The maximum number of hosts whose certificates are kept for later connections. Further hosts get
/// a new certificate for each connection.
const SERVERS_MAX: usize = 64;
/// The maximum number of characters in a line of a PEM file.
const PEM_LINE_CHARS: usize = 64;

/// A certificate authority whose private key exists only in memory, and only while one program
/// runs.
pub(super) struct RunCertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    /// The TLS settings for each host that the program has reached, by host name.
    servers: Mutex<BTreeMap<String, Arc<ServerConfig>>>,
}

impl RunCertificateAuthority {
    /// Creates a certificate authority with a new key.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(super) fn new() -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = new_params(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name = named("toolgate certificate authority for a single run");
        let certificate = params.self_signed(&key)?.der().clone();
        Ok(Self { issuer: Issuer::new(params, key), certificate, servers: Mutex::default() })
    }

    /// Returns the certificate of this authority as PEM.
    pub(super) fn certificate_pem(&self) -> String {
        pem(&self.certificate)
    }

    /// Returns the TLS settings of a server with a certificate for `host`. The server speaks
    /// HTTP/1.1 only.
    ///
    /// # Errors
    /// `host` is a name that no certificate can have.
    pub(super) fn server_config(&self, host: &str) -> Result<Arc<ServerConfig>, String> {
        let mut servers = lock_mutex(&self.servers);
        if let Some(config) = servers.get(host) {
            return Ok(config.clone());
        }
        let (certificate, key) = self.issue(host).map_err(|err| err.to_string())?;
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|err| err.to_string())?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], PrivateKeyDer::from(key));
        let mut config = config.map_err(|err| err.to_string())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let config = Arc::new(config);
        if servers.len() >= SERVERS_MAX {
            servers.clear();
        }
        servers.insert(host.to_owned(), config.clone());
        Ok(config)
    }

    /// Returns a new certificate for `host`, and its private key. The serial number of a
    /// certificate is derived from its key, so that no two certificates have the same number.
    fn issue(&self, host: &str) -> Result<(CertificateDer<'static>, KeyPair), rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = new_params(vec![host.to_owned()])?;
        params.distinguished_name = named("toolgate");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?.der().clone();
        Ok((certificate, key))
    }
}

/// Returns `certificate` as PEM.
pub(super) fn pem(certificate: &CertificateDer<'_>) -> String {
    let body = STANDARD.encode(certificate);
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(PEM_LINE_CHARS));
        text.push_str(line);
        text.push('\n');
        rest = more;
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

/// Returns the parameters of a certificate for the hosts `names`. The certificate is valid for at
/// least a year, as long as a program may run.
fn new_params(names: Vec<String>) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
    let month = u8::try_from(today.month()).unwrap_or(1);
    // Clocks may differ, and clients refuse certificates that are valid for much longer.
    params.not_before = date_time_ymd(i32::from(today.year()) - 1, month, 1);
    params.not_after = date_time_ymd(i32::from(today.year()) + 1, month, 28);
    Ok(params)
}

/// Returns a distinguished name with the common name `name`, for the subject of a certificate.
fn named(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::RootCertStore;
    use tokio_rustls::rustls::client::WebPkiServerVerifier;
    use tokio_rustls::rustls::client::danger::ServerCertVerifier as _;
    use tokio_rustls::rustls::pki_types::{ServerName, UnixTime};

    use super::*;

    fn is_trusted(
        authority: &RunCertificateAuthority,
        certificate: &CertificateDer<'_>,
        host: &str,
    ) -> bool {
        let mut roots = RootCertStore::empty();
        roots.add(authority.certificate.clone()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let verifier = verifier.build().unwrap();
        verifier.verify_server_cert(certificate, &[], &name, &[], UnixTime::now()).is_ok()
    }

    #[test]
    fn a_certificate_is_valid_for_its_host_and_the_authority_of_its_run_only() {
        let [one, other] =
            [RunCertificateAuthority::new().unwrap(), RunCertificateAuthority::new().unwrap()];
        for host in ["git.example.com", "localhost", "127.0.0.1", "::1"] {
            let (certificate, _) = one.issue(host).unwrap();
            assert!(is_trusted(&one, &certificate, host), "{host}");
            assert!(!is_trusted(&one, &certificate, "other.example"), "{host}");
            assert!(!is_trusted(&other, &certificate, host), "{host}");
        }
        assert_ne!(one.certificate_pem(), other.certificate_pem());
    }

    #[test]
    fn the_settings_of_a_host_are_kept_but_not_those_of_endless_hosts() {
        let authority = RunCertificateAuthority::new().unwrap();
        let first = authority.server_config("a.example").unwrap();
        assert!(Arc::ptr_eq(&first, &authority.server_config("a.example").unwrap()));
        for number in 0..SERVERS_MAX {
            authority.server_config(&format!("a{number}.example")).unwrap();
        }
        assert!(authority.servers.lock().unwrap().len() <= SERVERS_MAX);
    }

    #[test]
    fn pem_has_short_lines_between_its_markers() {
        let text = pem(&CertificateDer::from(vec![0; 100]));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert_eq!((lines[1].len(), lines[3].len()), (64, 8));
        assert_eq!(lines[4], "-----END CERTIFICATE-----");
    }
}
