//! Metrics of the daemon and its sessions over HTTP, for Prometheus and other tools that read the
//! same formats.
//!
//! ```text
//!  sessions ─► Metering (books) ─► families ─► exposition ─► server ─► clients
//!                                      ▲
//!  /proc/self ─► own_use ──────────────┘
//! ```
//!
//! Metrics are off unless an address is configured. A request is cheap: it reads nothing of a
//! target, and asks no drain and no controller. The endpoint is unauthenticated;
//! `docs/threat-model.md` describes the consequences.

mod address;
mod exposition;
mod families;
#[cfg(fuzzing)]
pub mod fuzzing;
mod negotiation;
mod own_use;
mod server;

use std::{error::Error, net::TcpListener};

pub use address::{MetricsAddress, NotAnAddress};
pub(crate) use server::{Server, serve};

use crate::socket::{Access, BoundSocket};

/// The metrics endpoint cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics at {address}")]
pub struct BindError {
    address: MetricsAddress,
    source: Box<dyn Error + Send + Sync>,
}

/// The listening socket of the metrics endpoint.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    /// Root and the group of its directory can connect.
    Unix(BoundSocket),
}

/// Listens at `address`.
///
/// # Errors
/// The error of the system.
pub(crate) fn bind(address: &MetricsAddress) -> Result<Listener, BindError> {
    let bound = match address {
        MetricsAddress::Tcp(address) => TcpListener::bind(address)
            .and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok(Listener::Tcp(listener))
            })
            .map_err(Into::into),
        MetricsAddress::Unix(path) => BoundSocket::bind(path, Access::Group)
            .map(Listener::Unix)
            .map_err(Into::into),
    };
    bound.map_err(|source| BindError {
        address: address.clone(),
        source,
    })
}

// === impl Listener ===

impl Listener {
    /// Logs the address, and warns if other machines can reach it.
    pub(crate) fn announce(&self) {
        let address = match self {
            Self::Tcp(listener) => listener.local_addr().map(MetricsAddress::Tcp),
            Self::Unix(socket) => {
                let path = socket.path().map(Into::into);
                Ok(MetricsAddress::Unix(path.unwrap_or_default()))
            }
        };
        let address = match address {
            Ok(address) => address,
            Err(error) => {
                return tracing::warn!(
                    %error,
                    "serving metrics, but cannot read the address of the socket"
                );
            }
        };
        if address.is_open() {
            tracing::warn!(
                %address,
                "serving metrics without authentication to other machines; metrics contain names \
                 of programs and functions"
            );
        } else {
            tracing::info!(%address, "serving metrics");
        }
    }
}
