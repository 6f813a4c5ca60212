//! One client's connection: its bytes, and the caller at its other end. The rights of the caller
//! are determined in `peer`.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

use super::admission::Admitted;
use crate::target::Caller;

/// The caller of a connection, with its groups.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) caller: Caller,
    /// All groups of its process.
    pub(super) groups: Arc<[u32]>,
}

/// A connection with a known caller. The caller is fixed at the connect. Later changes of the
/// peer's credentials change nothing, nor does passing on the descriptor.
#[derive(Debug)]
pub(super) struct Connection<T> {
    io: T,
    client: Client,
    /// The peer's place, which is free again when the connection ends. `None` in the peer's own
    /// process.
    _admitted: Option<Admitted>,
}

// === impl Client ===

impl Client {
    pub(super) fn new(caller: Caller, groups: Vec<u32>) -> Self {
        Self {
            caller,
            groups: groups.into(),
        }
    }
}

// === impl Connection ===

impl<T> Connection<T> {
    pub(super) fn new(io: T, client: Client, admitted: Option<Admitted>) -> Self {
        Self {
            io,
            client,
            _admitted: admitted,
        }
    }
}

impl<T> Connected for Connection<T> {
    type ConnectInfo = Client;

    fn connect_info(&self) -> Client {
        self.client.clone()
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Connection<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Connection<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
