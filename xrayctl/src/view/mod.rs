//! A small server for one report and one browser: on the loopback interface, behind a secret path.

mod browser;
mod respond;
mod secret;
mod server;

pub(crate) use browser::Browser;
pub(crate) use respond::Report;
pub(crate) use server::Server;
