"""The application: it says hello, and counts whom it said it to."""

from itertools import count

from flask import Flask, jsonify

app = Flask(__name__)
visitors = count(1)


@app.get("/")
def hello():
    return jsonify(hello="world", visitor=next(visitors))
