//! Numbers of the daemon and its sessions over HTTP, for Prometheus and whatever reads the same formats.
//!
//! ```text
//!  sessions ─► Metering (books) ─► families ─► exposition ─► server ─► whoever connects
//!                                      ▲
//!  /proc/self ─► own_use ──────────────┘
//! ```
//!
//! Off unless an address is named. Asking is cheap: nothing of a target is read, no drain and no control thread is asked. There is no
//! authorisation; `docs/threat-model.md` says what that means.

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

/// Metrics cannot be served there.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics at {address}")]
pub struct BindError {
    address: MetricsAddress,
    source: Box<dyn Error + Send + Sync>,
}

/// Where metrics are asked for.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    /// Root and the group of its directory can connect.
    Unix(BoundSocket),
}

/// Listens at `address`.
///
/// # Errors
/// What the system says.
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
    /// Says where metrics are, and whether others can see them.
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
                return tracing::warn!(%error, "metrics are served at an address that is not known");
            }
        };
        if address.is_open() {
            tracing::warn!(%address, "metrics are served to whoever can reach this address: names of programs and functions are in them");
        } else {
            tracing::info!(%address, "serving metrics");
        }
    }
}
