//! The integration tests, one binary: whole daemons, asked over real sockets.

mod house;
mod models;
mod reuse;
