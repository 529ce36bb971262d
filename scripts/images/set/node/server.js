// The application: it says hello, and counts whom it said it to.
const express = require('express');

const app = express();
let visitors = 0;
app.get('/', (request, response) => {
  visitors += 1;
  response.json({ hello: 'world', visitor: visitors });
});

const server = app.listen(3000, '0.0.0.0', () => console.log('listening on port 3000'));
for (const signal of ['SIGINT', 'SIGTERM']) {
  process.on(signal, () => server.close(() => process.exit(0)));
}
