//! The address of the metrics endpoint: an address and a port, a port of the loopback address, or a
//! unix socket. It is only parsed here, not bound.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

/// The address of the metrics endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsAddress {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A unix socket, by its absolute path.
    Unix(PathBuf),
}

/// The text is neither a port, nor an address with a port, nor a unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "neither a port nor an address with a port, such as 127.0.0.1:9464 or [::1]:9464, nor a unix socket, such as unix:/run/xrayd/metrics.sock"
)]
pub struct NotAnAddress;

// === impl MetricsAddress ===

impl MetricsAddress {
    /// True if other machines may reach the address.
    pub fn is_open(&self) -> bool {
        match self {
            Self::Tcp(address) => !address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => false,
        }
    }
}

impl FromStr for MetricsAddress {
    type Err = NotAnAddress;

    /// Parses an address. A port alone is on the loopback address, so reachability from other
    /// machines takes an explicit address.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return path
                .is_absolute()
                .then_some(Self::Unix(path))
                .ok_or(NotAnAddress);
        }
        if let Ok(port) = text.parse::<u16>() {
            let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
            return Ok(Self::Tcp(SocketAddr::new(loopback, port)));
        }
        text.parse().map(Self::Tcp).map_err(|_| NotAnAddress)
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_of_this_machine_only() {
        for (text, expected, open) in [
            ("9464", "127.0.0.1:9464", false),
            ("0", "127.0.0.1:0", false),
            ("127.0.0.1:9464", "127.0.0.1:9464", false),
            ("127.9.9.9:1", "127.9.9.9:1", false),
            ("[::1]:9464", "[::1]:9464", false),
            ("[::ffff:127.0.0.1]:9464", "[::ffff:127.0.0.1]:9464", false),
            ("0.0.0.0:9464", "0.0.0.0:9464", true),
            ("[::]:9464", "[::]:9464", true),
            ("192.0.2.1:80", "192.0.2.1:80", true),
            ("unix:/run/x.sock", "unix:/run/x.sock", false),
        ] {
            let address: MetricsAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), expected);
            assert_eq!(address.is_open(), open, "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "port",
            "65536",
            "-1",
            "localhost:9464",
            "127.0.0.1",
            ":9464",
            "*:9464",
            "9464 ",
            "unix:",
            "unix:x.sock",
            "/run/x.sock",
        ] {
            let error = text.parse::<MetricsAddress>().unwrap_err().to_string();
            assert!(error.starts_with("neither a port"), "{text}: {error}");
        }
    }
}
