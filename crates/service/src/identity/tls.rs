//! TLS certificate and key of the server, which are read again when their files change.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use toolgate_contract::lock_mutex;
use toolgate_world::root::EntryFingerprint;

use crate::config::ServerSection;
use crate::owned_files::{self, OwnedFileSymlinkPolicy};

/// Shortest time between two checks whether the TLS files have changed. A connecting client causes
/// a check.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Returns the TLS settings for the certificate and key that `server` configures, or `None` if no
/// certificate is configured.
///
/// # Errors
/// The PEM files cannot be read, or the key does not belong to the certificate.
pub(crate) fn tls_config(server: &ServerSection) -> anyhow::Result<Option<Arc<ServerConfig>>> {
    let (Some(certificate), Some(key)) = (&server.tls_certificate, &server.tls_key) else {
        return Ok(None);
    };
    let certificate = PathBuf::from(certificate);
    let key = PathBuf::from(key);
    let provider = Arc::new(ring::default_provider());
    let resolver =
        CertificateResolver::read(TlsCertificateFiles { certificate, key }, provider.clone())?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(Arc::new(config)))
}

/// Supplies the server's current TLS certificate to new connections.
#[derive(Debug)]
struct CertificateResolver {
    files: TlsCertificateFiles,
    provider: Arc<CryptoProvider>,
    current: Mutex<Arc<CertifiedKey>>,
    last_check: Mutex<CertificateCheckState>,
}

/// Paths of the files with the certificate and its key.
#[derive(Debug)]
struct TlsCertificateFiles {
    certificate: PathBuf,
    key: PathBuf,
}

/// Time of the last check of the TLS files, and the files' fingerprints at the last read, by which
/// a change is recognized.
#[derive(Debug)]
struct CertificateCheckState {
    checked_at: Instant,
    stamps: [Option<EntryFingerprint>; 2],
}

impl CertificateResolver {
    fn read(files: TlsCertificateFiles, provider: Arc<CryptoProvider>) -> anyhow::Result<Self> {
        let (key, stamps) = files.read(&provider)?;
        if owned_files::is_world_readable(&files.key) {
            let shown = files.key.display();
            tracing::warn!(
                "{shown}, the key of server.tls_key, can be read by every user; run `chmod o-r {shown}`"
            );
        }
        let check = CertificateCheckState { checked_at: Instant::now(), stamps };
        Ok(Self { files, provider, current: Mutex::new(key), last_check: Mutex::new(check) })
    }

    /// Reads the TLS certificate and key again if their files have changed. Clients that connect at
    /// the same moment get the previous certificate.
    fn reload_if_changed(&self) {
        let Ok(mut last) = self.last_check.try_lock() else { return };
        if last.checked_at.elapsed() < CHECK_INTERVAL {
            return;
        }
        last.checked_at = Instant::now();
        let stamps = self.files.stamps();
        if stamps == last.stamps {
            return;
        }
        match self.files.read(&self.provider) {
            Ok((key, stamps)) => {
                *lock_mutex(&self.current) = key;
                last.stamps = stamps;
                tracing::info!("the certificate was read again");
            }
            // If only one of the two files is new yet, the next check tries again.
            Err(err) => {
                tracing::warn!("the certificate is unchanged: {err:#}");
            }
        }
    }
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.reload_if_changed();
        Some(lock_mutex(&self.current).clone())
    }
}

impl TlsCertificateFiles {
    fn stamps(&self) -> [Option<EntryFingerprint>; 2] {
        [&self.certificate, &self.key].map(|path| owned_files::stamp_of(path))
    }

    fn read(
        &self,
        provider: &CryptoProvider,
    ) -> anyhow::Result<(Arc<CertifiedKey>, [Option<EntryFingerprint>; 2])> {
        let (chain, first) =
            owned_files::read_owned(&self.certificate, OwnedFileSymlinkPolicy::Followed)
                .context("in server.tls_certificate")?;
        let (key, second) = owned_files::read_owned(&self.key, OwnedFileSymlinkPolicy::Followed)
            .context("in server.tls_key")?;
        let shown = self.certificate.display();
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&chain)
            .collect::<Result<_, _>>()
            .map_err(|err| anyhow!("{shown} is not a PEM file: {err}"))?;
        if chain.is_empty() {
            return Err(anyhow!("{shown} contains no certificate"));
        }
        let shown = self.key.display();
        let key = PrivateKeyDer::from_pem_slice(&key)
            .map_err(|_| anyhow!("{shown} contains no private key in PEM"))?;
        let key = CertifiedKey::from_der(chain, key, provider).map_err(|err| {
            let certificate = self.certificate.display();
            let key = self.key.display();
            anyhow!("{key} is not the key of the certificate {certificate}: {err}")
        })?;
        Ok((Arc::new(key), [Some(first), Some(second)]))
    }
}
